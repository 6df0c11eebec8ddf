#include "weft/train/hf_config.h"

#include <array>
#include <charconv>
#include <cmath>

#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>

#include "src/train/files/file_io.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// Defaults of transformers for keys that a config.json may leave out.
constexpr double kDefaultNormEps = 1e-6;
constexpr double kDefaultRopeTheta = 10000.0;
constexpr int64_t kDefaultMaxPositions = 2048;

// Reader of one JSON object's values. Keeps the first error.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

  int64_t Size(const char* key) {
    if (!Has(key)) {
      Fail(absl::DataLossError(absl::StrCat(Place(key), " is missing")));
      return 1;
    }
    if (!object_[key].is_number_unsigned() || object_[key].get<uint64_t>() - 1 >= kMaxSize) {
      Fail(absl::DataLossError(absl::StrCat(Place(key), " is ", object_[key].dump(),
                                            ", but it must be a whole number from 1 to 2^40")));
      return 1;
    }
    return object_[key].get<int64_t>();
  }
  int64_t Size(const char* key, int64_t fallback) { return Has(key) ? Size(key) : fallback; }

  double Positive(const char* key) {
    if (!Has(key)) {
      Fail(absl::DataLossError(absl::StrCat(Place(key), " is missing")));
      return 1;
    }
    const double value = object_[key].is_number() ? object_[key].get<double>() : std::nan("");
    if (!(value > 0) || std::isinf(value)) {
      Fail(absl::DataLossError(
          absl::StrCat(Place(key), " is ", object_[key].dump(), ", but it must be a positive number")));
      return 1;
    }
    return value;
  }
  double Positive(const char* key, double fallback) { return Has(key) ? Positive(key) : fallback; }

  bool Bool(const char* key, bool fallback) {
    if (Has(key) && !object_[key].is_boolean()) {
      Fail(absl::DataLossError(
          absl::StrCat(Place(key), " is ", object_[key].dump(), ", but it must be true or false")));
    }
    return Has(key) && object_[key].is_boolean() ? object_[key].get<bool>() : fallback;
  }

  // Fails if the key is present with another value than `allowed`.
  void RequireOnly(const char* key, const Json& allowed) {
    if (Has(key) && object_[key] != allowed) {
      Fail(absl::UnimplementedError(absl::StrCat(Place(key), " is ", object_[key].dump(),
                                                 "; weft supports only ",
                                                 allowed.is_null() ? "models without it" : allowed.dump())));
    }
  }

  void Fail(absl::Status status) {
    if (status_.ok()) {
      status_ = std::move(status);
    }
  }
  std::string Place(const char* key) const { return absl::StrCat("'", path_, "': ", key); }
  const absl::Status& status() const { return status_; }

 private:
  static constexpr uint64_t kMaxSize = uint64_t{1} << 40;
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

// The rope type in a rope_scaling or rope_parameters object. "type" is the oldest name of the key.
std::string RopeType(const Json& rope) {
  for (const char* key : {"rope_type", "type"}) {
    if (rope.contains(key) && rope[key].is_string()) {
      return rope[key];
    }
  }
  return "default";
}

absl::Status ReadRopeObject(const Json& json, const char* key, const std::string& path, LlamaConfig& config) {
  const Json& rope = json[key];
  if (!rope.is_object()) {
    return absl::DataLossError(absl::StrCat("'", path, "': ", key, " is not an object"));
  }
  Fields fields(rope, absl::StrCat(path, "': '", key));
  config.rope_theta = fields.Positive("rope_theta", config.rope_theta);
  const std::string type = RopeType(rope);
  if (type == "llama3") {
    config.rope_scaling = Llama3RopeScaling{static_cast<float>(fields.Positive("factor")),
                                            static_cast<float>(fields.Positive("low_freq_factor")),
                                            static_cast<float>(fields.Positive("high_freq_factor")),
                                            fields.Size("original_max_position_embeddings")};
  } else if (type != "default") {
    return absl::UnimplementedError(absl::StrCat("'", path, "': ", key, ".rope_type is '", type,
                                                 "'; weft supports the types default and llama3"));
  }
  return fields.status();
}

absl::Status ReadRope(const Json& json, const std::string& path, LlamaConfig& config) {
  Fields fields(json, path);
  config.rope_theta = fields.Positive("rope_theta", kDefaultRopeTheta);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (fields.Has(key)) {
      WEFT_RETURN_IF_ERROR(ReadRopeObject(json, key, path, config));
    }
  }
  return fields.status();
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

}  // namespace

absl::StatusOr<LlamaConfig> ParseHfConfig(std::string_view text, const std::string& path) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' is not a JSON object: is it a Hugging Face config.json?"));
  }
  Fields fields(json, path);
  CheckArchitecture(fields);
  LlamaConfig config;
  config.vocab_size = fields.Size("vocab_size");
  config.dim = fields.Size("hidden_size");
  config.layers = fields.Size("num_hidden_layers");
  config.heads = fields.Size("num_attention_heads");
  config.kv_heads = fields.Size("num_key_value_heads", config.heads);
  config.head_dim = fields.Size("head_dim", config.dim / config.heads);
  config.ffn_dim = fields.Size("intermediate_size");
  config.norm_eps = static_cast<float>(fields.Positive("rms_norm_eps", kDefaultNormEps));
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  config.max_positions = fields.Size("max_position_embeddings", kDefaultMaxPositions);
  CheckHeads(config, fields);
  WEFT_RETURN_IF_ERROR(fields.status());
  WEFT_RETURN_IF_ERROR(ReadRope(json, path, config));
  return config;
}

absl::StatusOr<LlamaConfig> ReadHfConfig(const std::string& folder) {
  const std::string path = folder + "/config.json";
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  return ParseHfConfig(text, path);
}

std::string FormatHfConfig(const LlamaConfig& config, std::string_view source) {
  Json json = Json::parse(source, nullptr, false);
  if (!json.is_object()) {
    json = {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}};
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

}  // namespace weft
