// config.json of a Hugging Face Llama folder, read and written.
//
// Read are the names of transformers' LlamaConfig: both the older rope_theta with rope_scaling and the newer
// rope_parameters. What weft's model cannot do (another architecture, biases, dropout, another activation,
// other rope types, quantized weights) is an error that names the key: training on must never differ silently
// from what the folder means.
#pragma once

#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/nn/llama_config.h"

namespace weft {

// `path` is for messages. Errors: kDataLoss (no JSON; a key missing, of the wrong type or out of range),
// kUnimplemented (a value that the model cannot do); all name the key.
absl::StatusOr<LlamaConfig> ParseHfConfig(std::string_view json, const std::string& path);

// From the folder's config.json. Errors: also kNotFound, kPermissionDenied.
absl::StatusOr<LlamaConfig> ReadHfConfig(const std::string& folder);

// The config.json of `config` with fp32 weights. `source` is the one that the model came from, whose other
// keys (token ids and the like) are kept; empty for a new model.
std::string FormatHfConfig(const LlamaConfig& config, std::string_view source);

}  // namespace weft
