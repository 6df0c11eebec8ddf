#include "weft/train/peft_adapter.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/train/config/config_file.h"
#include "src/train/files/json.h"
#include "src/train/files/json_fields.h"
#include "src/train/files/json_text.h"
#include "src/train/files/model_folder.h"
#include "weft/core/status.h"
#include "weft/nn/llama_config.h"

namespace weft {
namespace {

constexpr const char* kPeftConfig = "PEFT adapter_config.json";
constexpr size_t kMaxTargets = 10'000;
constexpr size_t kMaxTargetBytes = 1'000;

// Keys that are read, and keys whose values change nothing about the adapters of a causal language model. A
// few of them belong to features whose own keys must be absent.
constexpr const char* kKnownKeys[] = {"alora_invocation_string",
                                      "auto_mapping",
                                      "base_model_name_or_path",
                                      "bias",
                                      "inference_mode",
                                      "init_lora_weights",
                                      "lora_alpha",
                                      "lora_dropout",
                                      "megatron_core",
                                      "peft_type",
                                      "peft_version",
                                      "qalora_group_size",
                                      "r",
                                      "revision",
                                      "runtime_config",
                                      "target_modules",
                                      "task_type"};

bool IsKnown(const std::string& key) {
  return std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) != std::end(kKnownKeys);
}

// True for the value of a feature that is not used.
bool IsOff(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("") ||
         (value.is_structured() && value.empty());
}

// Refuses features that weft does not have, known or not.
void CheckFeatures(const Json& json, JsonFields& fields) {
  fields.RequireOnly("bias", "none");
  fields.RequireOnly("task_type", "CAUSAL_LM");
  // The other initializations change the weights of the model too.
  if (fields.Has("init_lora_weights") && json["init_lora_weights"] != Json("gaussian") &&
      !json["init_lora_weights"].is_boolean()) {
    fields.RequireOnly("init_lora_weights", true);
  }
  for (const auto& [key, value] : json.items()) {
    if (IsKnown(key) || IsOff(value)) continue;
    fields.Fail(absl::UnimplementedError(absl::StrCat(fields.Place(Excerpt(key).c_str()), " is ",
                                                      Excerpt(JsonText(value)),
                                                      "; weft supports only adapters without it")));
  }
}

std::vector<std::string> ReadTargets(JsonFields& fields) {
  constexpr const char* kKey = "target_modules";
  const Json& value = fields.Value(kKey);
  if (value == LoraOptions::kAllLinear) return {LoraOptions::kAllLinear};
  if (value.is_string()) {
    fields.Fail(absl::UnimplementedError(absl::StrCat(fields.Place(kKey), " is ", Excerpt(JsonText(value)),
                                                      "; weft supports a list of names, or \"all-linear\"")));
    return {};
  }
  std::vector<std::string> targets;
  for (const Json& target : value) {
    std::string name = target.is_string() ? target.get<std::string>() : "";
    if (!name.empty() && name.size() <= kMaxTargetBytes) targets.push_back(std::move(name));
  }
  if (!value.is_array() || targets.size() != value.size() || targets.empty() ||
      targets.size() > kMaxTargets) {
    fields.FailValue(kKey, "it must be a list of names");
  }
  return targets;
}

// A whole number without a fraction, as PEFT writes it.
Json NumberOf(double value) {
  constexpr double kExact = 0x1p53;
  return std::abs(value) < kExact && std::trunc(value) == value ? Json(static_cast<int64_t>(value))
                                                                : Json(value);
}

}  // namespace

absl::StatusOr<PeftAdapter> ParsePeftAdapter(std::string_view text, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseConfigFile(text, path, kPeftConfig));
  JsonFields fields(json, absl::StrCat("'", path, "'"));
  fields.Value("peft_type");  // It must be there.
  fields.RequireOnly("peft_type", "LORA");
  CheckFeatures(json, fields);
  PeftAdapter adapter;
  adapter.lora.rank = fields.Whole("r", 1, LlamaLimits::kWidth);
  adapter.lora.alpha = fields.Positive("lora_alpha");
  adapter.lora.targets = ReadTargets(fields);
  adapter.lora.dropout = fields.Number("lora_dropout", 0, 1, 0);
  adapter.text = std::string(text);
  WEFT_RETURN_IF_ERROR(fields.status());
  return adapter;
}

absl::StatusOr<PeftAdapter> ReadPeftAdapter(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadModelFile(folder, kAdapterConfig, kMaxConfigFileBytes));
  return ParsePeftAdapter(text, absl::StrCat(folder, "/", kAdapterConfig));
}

std::string FormatPeftAdapter(const LoraOptions& lora, const std::string& base, std::string_view source) {
  Json json = ParseJson(source);
  if (!json.is_object()) {
    json = {{"peft_type", "LORA"},     {"task_type", "CAUSAL_LM"},   {"base_model_name_or_path", nullptr},
            {"inference_mode", true},  {"lora_dropout", 0.0},        {"bias", "none"},
            {"fan_in_fan_out", false}, {"modules_to_save", nullptr}, {"init_lora_weights", true},
            {"use_rslora", false},     {"use_dora", false}};
  }
  if (!base.empty()) json["base_model_name_or_path"] = base;
  json["r"] = lora.rank;
  json["lora_alpha"] = NumberOf(lora.alpha);
  json["target_modules"] = lora.targets;
  json["lora_dropout"] = lora.dropout;
  return JsonText(json, 2) + "\n";
}

}  // namespace weft
