#include "weft/train/hf_config.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>

#include "src/train/files/json_text.h"
#include "src/train/files/model_folder.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// Defaults of transformers for keys that a config.json may leave out.
constexpr double kDefaultNormEps = 1e-6;
constexpr double kDefaultRopeTheta = 10000.0;
constexpr int64_t kDefaultMaxPositions = 2048;
// Limits above the needs of any model. They also bound the config.json of an export, which keeps unknown
// keys.
constexpr int64_t kMaxBytes = 1 << 20;
constexpr JsonLimits kLimits = {.levels = 32, .values = 20'000, .token_bytes = kMaxBytes};

// Reader of one JSON object's values. Keeps the first error.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

  int64_t Size(const char* key, int64_t max) {
    if (!Has(key)) {
      Fail(absl::DataLossError(absl::StrCat(Place(key), " is missing")));
      return 1;
    }
    const Json& value = object_[key];
    if (!value.is_number_unsigned() || value.get<uint64_t>() == 0) {
      FailValue(key, "it must be a positive whole number");
      return 1;
    }
    if (value.get<uint64_t>() > static_cast<uint64_t>(max)) {
      FailValue(key, absl::StrCat("it can be at most ", max));
      return 1;
    }
    return value.get<int64_t>();
  }
  int64_t Size(const char* key, int64_t max, int64_t fallback) {
    return Has(key) ? Size(key, max) : fallback;
  }

  double Positive(const char* key) {
    if (!Has(key)) {
      Fail(absl::DataLossError(absl::StrCat(Place(key), " is missing")));
      return 1;
    }
    const double value = object_[key].is_number() ? object_[key].get<double>() : std::nan("");
    // All of these values become floats.
    if (!(static_cast<float>(value) > 0) || !std::isfinite(static_cast<float>(value))) {
      FailValue(key, "it must be a positive number in the range of float");
      return 1;
    }
    return value;
  }
  double Positive(const char* key, double fallback) { return Has(key) ? Positive(key) : fallback; }

  bool Bool(const char* key, bool fallback) {
    if (!Has(key)) return fallback;
    if (!object_[key].is_boolean()) {
      FailValue(key, "it must be true or false");
      return fallback;
    }
    return object_[key].get<bool>();
  }

  // Fails if the key is present with another value than `allowed`.
  void RequireOnly(const char* key, const Json& allowed) {
    if (Has(key) && object_[key] != allowed) {
      Fail(absl::UnimplementedError(absl::StrCat(Place(key), " is ", Excerpt(object_[key].dump()),
                                                 "; weft supports only ",
                                                 allowed.is_null() ? "models without it" : allowed.dump())));
    }
  }

  void Fail(absl::Status status) {
    if (status_.ok()) {
      status_ = std::move(status);
    }
  }
  void FailValue(const char* key, const absl::AlphaNum& rule) {
    Fail(absl::DataLossError(absl::StrCat(Place(key), " is ", Excerpt(object_[key].dump()), ", but ", rule)));
  }
  std::string Place(const char* key) const { return absl::StrCat("'", path_, "': ", key); }
  const absl::Status& status() const { return status_; }

 private:
  const Json& object_;
  std::string path_;
  absl::Status status_;
};

void CheckArchitecture(Fields& fields) {
  fields.RequireOnly("model_type", "llama");
  fields.RequireOnly("hidden_act", "silu");
  fields.RequireOnly("attention_bias", false);
  fields.RequireOnly("mlp_bias", false);
  fields.RequireOnly("attention_dropout", 0.0);
  fields.RequireOnly("partial_rotary_factor", 1.0);
  fields.RequireOnly("sliding_window", nullptr);
  fields.RequireOnly("quantization_config", nullptr);
}

void CheckHeads(const LlamaConfig& config, Fields& fields) {
  if (config.heads % config.kv_heads != 0) {
    fields.Fail(
        absl::DataLossError(absl::StrCat(fields.Place("num_key_value_heads"), " is ", config.kv_heads,
                                         ", which does not divide num_attention_heads ", config.heads)));
  }
  if (config.head_dim % 2 != 0) {
    fields.Fail(absl::DataLossError(absl::StrCat(fields.Place("head_dim"), " is ", config.head_dim,
                                                 "; rotary embedding needs an even size")));
  }
}

struct RopeSettings {
  double theta = kDefaultRopeTheta;
  std::optional<Llama3RopeScaling> scaling;

  bool operator==(const RopeSettings& other) const {
    if (theta != other.theta || scaling.has_value() != other.scaling.has_value()) return false;
    return !scaling || (scaling->factor == other.scaling->factor &&
                        scaling->low_freq_factor == other.scaling->low_freq_factor &&
                        scaling->high_freq_factor == other.scaling->high_freq_factor &&
                        scaling->original_max_positions == other.scaling->original_max_positions);
  }
};

// The rope type in a rope_scaling or rope_parameters object. "type" is the oldest name of the key.
std::string RopeType(const Json& rope, Fields& fields) {
  std::string type;
  for (const char* key : {"rope_type", "type"}) {
    if (!rope.contains(key)) continue;
    if (!rope[key].is_string()) {
      fields.FailValue(key, "it must be a string");
    } else if (!type.empty() && rope[key] != type) {
      fields.FailValue(key, absl::StrCat("rope_type is '", Excerpt(type), "': keep one of them"));
    } else {
      type = rope[key];
    }
  }
  return type.empty() ? "default" : type;
}

// The rope of a rope_scaling or rope_parameters object. `theta` is that of the keys beside it.
absl::StatusOr<RopeSettings> ReadRopeObject(const Json& json, const char* key, const std::string& path,
                                            double theta) {
  const Json& object = json[key];
  if (!object.is_object()) {
    return absl::DataLossError(absl::StrCat("'", path, "': ", key, " is not an object"));
  }
  Fields fields(object, absl::StrCat(path, "': '", key));
  RopeSettings rope{fields.Positive("rope_theta", theta), std::nullopt};
  const std::string type = RopeType(object, fields);
  WEFT_RETURN_IF_ERROR(fields.status());
  if (type == "llama3") {
    rope.scaling = Llama3RopeScaling{
        static_cast<float>(fields.Positive("factor")), static_cast<float>(fields.Positive("low_freq_factor")),
        static_cast<float>(fields.Positive("high_freq_factor")),
        fields.Size("original_max_position_embeddings", LlamaLimits::kPositions)};
  } else if (type != "default") {
    return absl::UnimplementedError(absl::StrCat("'", path, "': ", key, ".rope_type is '", Excerpt(type),
                                                 "'; weft supports the types default and llama3"));
  }
  WEFT_RETURN_IF_ERROR(fields.status());
  return rope;
}

// Versions of transformers prefer different ones of these keys, so all of them must agree.
absl::StatusOr<RopeSettings> ReadRope(const Json& json, const std::string& path) {
  Fields fields(json, path);
  const bool has_theta = fields.Has("rope_theta");
  RopeSettings rope{fields.Positive("rope_theta", kDefaultRopeTheta), std::nullopt};
  WEFT_RETURN_IF_ERROR(fields.status());
  const char* source = nullptr;  // The object that `rope` comes from.
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!fields.Has(key)) continue;
    WEFT_ASSIGN_OR_RETURN(const RopeSettings read, ReadRopeObject(json, key, path, rope.theta));
    if (has_theta && read.theta != rope.theta) {
      return absl::DataLossError(absl::StrCat("'", path, "': ", key, ".rope_theta is ", read.theta,
                                              ", but rope_theta is ", rope.theta, ": keep one of them"));
    }
    if (source != nullptr && !(read == rope)) {
      return absl::DataLossError(absl::StrCat("'", path, "': ", key, " differs from ", source,
                                              ": keep the one that the model was trained with"));
    }
    rope = read;
    source = key;
  }
  return rope;
}

// The double whose decimal form is the shortest that reads back as `value`: 1e-05, not 9.999999747378752e-06.
double Shortest(float value) {
  std::array<char, 32> text{};
  char* end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double shortest = 0;
  std::from_chars(text.data(), end, shortest);
  return shortest;
}

// Sets the rope keys for older versions of transformers (rope_theta, rope_scaling) and newer ones
// (rope_parameters).
void SetRope(const LlamaConfig& config, Json& json) {
  Json parameters = {{"rope_type", "default"}, {"rope_theta", config.rope_theta}};
  json.erase("rope_scaling");
  if (config.rope_scaling) {
    const Llama3RopeScaling& scaling = *config.rope_scaling;
    parameters["rope_type"] = "llama3";
    parameters["factor"] = Shortest(scaling.factor);
    parameters["low_freq_factor"] = Shortest(scaling.low_freq_factor);
    parameters["high_freq_factor"] = Shortest(scaling.high_freq_factor);
    parameters["original_max_position_embeddings"] = scaling.original_max_positions;
    json["rope_scaling"] = parameters;
  }
  json["rope_theta"] = config.rope_theta;
  json["rope_parameters"] = parameters;
}

// Checks and parses text that must be a JSON object.
absl::StatusOr<Json> ParseObject(std::string_view text, const std::string& path) {
  if (text.size() > kMaxBytes) {
    return absl::DataLossError(absl::StrCat("'", path, "' has ", text.size(), " bytes, but at most ",
                                            kMaxBytes, " are allowed: is it a Hugging Face config.json?"));
  }
  if (const absl::Status status = CheckJsonText(text, kLimits); !status.ok()) {
    return Annotate(status, absl::StrCat("'", path, "'"));
  }
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' is not a JSON object: is it a Hugging Face config.json?"));
  }
  return json;
}

}  // namespace

absl::StatusOr<LlamaConfig> ParseHfConfig(std::string_view text, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseObject(text, path));
  Fields fields(json, path);
  CheckArchitecture(fields);
  LlamaConfig config;
  config.vocab_size = fields.Size("vocab_size", LlamaLimits::kVocabulary);
  config.dim = fields.Size("hidden_size", LlamaLimits::kWidth);
  config.layers = fields.Size("num_hidden_layers", LlamaLimits::kLayers);
  config.heads = fields.Size("num_attention_heads", LlamaLimits::kWidth);
  config.kv_heads = fields.Size("num_key_value_heads", LlamaLimits::kWidth, config.heads);
  config.head_dim = fields.Size("head_dim", LlamaLimits::kWidth, config.dim / config.heads);
  config.ffn_dim = fields.Size("intermediate_size", LlamaLimits::kFfnWidth);
  config.norm_eps = static_cast<float>(fields.Positive("rms_norm_eps", kDefaultNormEps));
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  config.max_positions =
      fields.Size("max_position_embeddings", LlamaLimits::kPositions, kDefaultMaxPositions);
  CheckHeads(config, fields);
  WEFT_RETURN_IF_ERROR(fields.status());
  WEFT_ASSIGN_OR_RETURN(const RopeSettings rope, ReadRope(json, path));
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
  if (const absl::Status status = Validate(config); !status.ok()) {
    return absl::DataLossError(absl::StrCat("'", path, "': ", status.message()));
  }
  return config;
}

absl::StatusOr<std::string> ReadHfConfigText(const std::string& folder) {
  return ReadModelFile(folder, "config.json", kMaxBytes);
}

absl::StatusOr<LlamaConfig> ReadHfConfig(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadHfConfigText(folder));
  return ParseHfConfig(text, folder + "/config.json");
}

std::string FormatHfConfig(const LlamaConfig& config, std::string_view source) {
  Json json = Json::parse(source, nullptr, false);
  if (!json.is_object()) {
    json = {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}};
    // Bytes have no tokens for the start and the end of a text. Without these keys transformers assumes 1 and
    // 2.
    json["bos_token_id"] = nullptr;
    json["eos_token_id"] = nullptr;
  }
  json.erase("torch_dtype");
  json["dtype"] = "float32";
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.dim;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["intermediate_size"] = config.ffn_dim;
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["rms_norm_eps"] = Shortest(config.norm_eps);
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["max_position_embeddings"] = config.max_positions;
  SetRope(config, json);
  return json.dump(2) + "\n";
}

absl::StatusOr<SparseAttentionConfig> ParseIndexerConfig(std::string_view text, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseObject(text, path));
  Fields fields(json, path);
  SparseAttentionConfig config;
  config.index_heads = fields.Size("index_n_heads", LlamaLimits::kWidth);
  config.index_dim = fields.Size("index_head_dim", LlamaLimits::kWidth);
  config.top_k = fields.Size("index_topk", LlamaLimits::kPositions);
  WEFT_RETURN_IF_ERROR(fields.status());
  if (config.index_dim % 2 != 0) fields.FailValue("index_head_dim", "rotary embedding needs an even size");
  WEFT_RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<SparseAttentionConfig> ReadIndexerConfig(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadModelFile(folder, kIndexerConfig, kMaxBytes));
  return ParseIndexerConfig(text, absl::StrCat(folder, "/", kIndexerConfig));
}

std::string FormatIndexerConfig(const SparseAttentionConfig& config) {
  const Json json = {{"index_n_heads", config.index_heads},
                     {"index_head_dim", config.index_dim},
                     {"index_topk", config.top_k}};
  return json.dump(2) + "\n";
}

}  // namespace weft
