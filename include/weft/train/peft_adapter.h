// Reader and writer of adapter_config.json of a PEFT folder, which describes low-rank adapters (LoRA). Their
// weights are in adapter_model.safetensors beside it, with the names of weft's parameters.
//
// weft reads peft_type, r, lora_alpha, target_modules (a list of names, or "all-linear") and lora_dropout. A
// key of another feature, such as use_dora, use_rslora, modules_to_save, bias or rank_pattern, must be null,
// false or empty, or have the value that means "without it". Otherwise the error names the key. Keys that
// only describe the file are not read.
#pragma once

#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "weft/nn/linear.h"

namespace weft {

struct PeftAdapter {
  LoraOptions lora;
  std::string text;  // The text of adapter_config.json.
};

// Parses the text of an adapter_config.json. Errors: kDataLoss (not JSON; a key is missing, has the wrong
// type or is out of range), kUnimplemented (an unsupported value). Messages name `path` and the key.
absl::StatusOr<PeftAdapter> ParsePeftAdapter(std::string_view json, const std::string& path);
// Reads and parses the adapter_config.json of a folder. Errors: those of ParsePeftAdapter, kNotFound,
// kPermissionDenied.
absl::StatusOr<PeftAdapter> ReadPeftAdapter(const std::string& folder);

// Formats the adapter_config.json of adapters. `base`: the folder or name of the model that they belong to;
// may be empty. `source`: the text of the adapter_config.json that they came from, whose other keys are kept.
// Empty for new adapters.
std::string FormatPeftAdapter(const LoraOptions& lora, const std::string& base, std::string_view source);

}  // namespace weft
