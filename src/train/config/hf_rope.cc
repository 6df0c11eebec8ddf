#include "src/train/config/hf_rope.h"

#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/train/files/json.h"
#include "src/train/files/json_fields.h"
#include "src/train/files/json_text.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr double kDefaultTheta = 10000.0;
constexpr const char* kOriginalPositions = "original_max_position_embeddings";

// A rope_scaling or rope_parameters object of a model.
struct RopeObject {
  JsonFields& fields;
  JsonFields& model;  // The keys of config.json.
  const LlamaConfig& config;

  // The positions of the first training. transformers prefers the model's key, so the two must be equal.
  int64_t OriginalPositions(std::optional<int64_t> fallback) {
    constexpr int64_t kMost = LlamaLimits::kPositions;
    if (!model.Has(kOriginalPositions)) {
      return fallback ? fields.Whole(kOriginalPositions, 1, kMost, *fallback)
                      : fields.Whole(kOriginalPositions, 1, kMost);
    }
    const int64_t positions = model.Whole(kOriginalPositions, 1, kMost);
    fields.Fail(model.status());
    if (fields.Has(kOriginalPositions) && fields.Whole(kOriginalPositions, 1, kMost) != positions) {
      fields.FailValue(kOriginalPositions,
                       absl::StrCat("beside the object it is ", positions, ": keep one of them"));
    }
    return positions;
  }
  float Factor(const char* key) { return static_cast<float>(fields.Positive(key)); }
  float Factor(const char* key, double fallback) {
    return static_cast<float>(fields.Positive(key, fallback));
  }
  // "factor", or the ratio of all positions to the original ones.
  float ContextFactor(int64_t original) {
    return Factor("factor", static_cast<double>(config.max_positions) / static_cast<double>(original));
  }
};

RopeScaling ReadLlama3(RopeObject rope) {
  return Llama3RopeScaling{rope.Factor("factor"), rope.Factor("low_freq_factor"),
                           rope.Factor("high_freq_factor"), rope.OriginalPositions(std::nullopt)};
}

RopeScaling ReadLinear(RopeObject rope) { return LinearRopeScaling{rope.Factor("factor")}; }

RopeScaling ReadDynamic(RopeObject rope) { return DynamicRopeScaling{rope.Factor("factor")}; }

// The growth of attention scores with the context (Peng et al., "YaRN", 2023, section 3.4).
double AttentionGrowth(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

RopeScaling ReadYarn(RopeObject rope) {
  YarnRopeScaling scaling;
  scaling.original_max_positions = rope.OriginalPositions(rope.config.max_positions);
  scaling.factor = rope.ContextFactor(scaling.original_max_positions);
  double attention_factor = AttentionGrowth(scaling.factor, 1.0);
  if (rope.fields.Has("mscale") && rope.fields.Has("mscale_all_dim")) {
    attention_factor = AttentionGrowth(scaling.factor, rope.fields.Positive("mscale")) /
                       AttentionGrowth(scaling.factor, rope.fields.Positive("mscale_all_dim"));
  }
  scaling.attention_factor = rope.Factor("attention_factor", attention_factor);
  scaling.beta_fast = rope.Factor("beta_fast", scaling.beta_fast);
  scaling.beta_slow = rope.Factor("beta_slow", scaling.beta_slow);
  scaling.truncate = rope.fields.Bool("truncate", true);
  return scaling;
}

RopeScaling ReadLongRope(RopeObject rope) {
  LongRopeScaling scaling;
  scaling.short_factors = rope.fields.PositiveList("short_factor", rope.config.head_dim / 2);
  scaling.long_factors = rope.fields.PositiveList("long_factor", rope.config.head_dim / 2);
  scaling.original_max_positions = rope.OriginalPositions(rope.config.max_positions);
  const double factor = rope.ContextFactor(scaling.original_max_positions);
  const double growth =
      factor <= 1 || scaling.original_max_positions < 2
          ? 1.0
          : std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(scaling.original_max_positions)));
  scaling.attention_factor = rope.Factor("attention_factor", growth);
  return scaling;
}

// Rope types beside "default".
struct RopeType {
  const char* name;
  RopeScaling (*read)(RopeObject);
};
constexpr std::array<RopeType, 5> kRopeTypes = {{{"linear", ReadLinear},
                                                 {"dynamic", ReadDynamic},
                                                 {"yarn", ReadYarn},
                                                 {"longrope", ReadLongRope},
                                                 {"llama3", ReadLlama3}}};

// The rope type in a rope_scaling or rope_parameters object. "type" is the oldest name of the key.
std::string RopeTypeOf(const Json& rope, JsonFields& fields) {
  std::string type;
  for (const char* key : {"rope_type", "type"}) {
    if (!rope.contains(key)) continue;
    const std::string text = fields.Text(key);
    if (!type.empty() && text != type) {
      fields.FailValue(key, absl::StrCat("rope_type is '", Excerpt(type), "': keep one of them"));
    }
    type = text;
  }
  return type.empty() ? "default" : type;
}

absl::StatusOr<std::optional<RopeScaling>> ReadScaling(const std::string& type, const std::string& place,
                                                       RopeObject rope) {
  if (type == "default") return std::nullopt;
  std::vector<std::string> names = {"default"};
  for (const RopeType& known : kRopeTypes) {
    if (type == known.name) return known.read(rope);
    names.emplace_back(known.name);
  }
  return absl::UnimplementedError(absl::StrCat(place, ".rope_type is '", Excerpt(type),
                                               "'; weft supports the types ", absl::StrJoin(names, ", ")));
}

// The rope of a rope_scaling or rope_parameters object. `theta` is that of the keys beside it.
absl::StatusOr<RopeSettings> ReadRopeObject(const Json& json, const char* key, const std::string& path,
                                            const LlamaConfig& config, double theta) {
  const Json& object = json[key];
  const std::string place = absl::StrCat("'", path, "': ", key);
  JsonFields fields(object, place);
  JsonFields model(json, absl::StrCat("'", path, "'"));
  RopeSettings rope{fields.Positive("rope_theta", theta), std::nullopt};
  fields.RequireOnly("partial_rotary_factor", 1.0);
  const std::string type = RopeTypeOf(object, fields);
  WEFT_RETURN_IF_ERROR(fields.status());
  WEFT_ASSIGN_OR_RETURN(rope.scaling, ReadScaling(type, place, {fields, model, config}));
  WEFT_RETURN_IF_ERROR(fields.status());
  return rope;
}

Json Floats(const std::vector<float>& values) {
  Json list = Json::array();
  for (const float value : values) list.push_back(ShortestDouble(value));
  return list;
}

void Set(const Llama3RopeScaling& scaling, Json& json) {
  json["rope_type"] = "llama3";
  json["factor"] = ShortestDouble(scaling.factor);
  json["low_freq_factor"] = ShortestDouble(scaling.low_freq_factor);
  json["high_freq_factor"] = ShortestDouble(scaling.high_freq_factor);
  json[kOriginalPositions] = scaling.original_max_positions;
}

void Set(const LinearRopeScaling& scaling, Json& json) {
  json["rope_type"] = "linear";
  json["factor"] = ShortestDouble(scaling.factor);
}

void Set(const DynamicRopeScaling& scaling, Json& json) {
  json["rope_type"] = "dynamic";
  json["factor"] = ShortestDouble(scaling.factor);
}

void Set(const YarnRopeScaling& scaling, Json& json) {
  json["rope_type"] = "yarn";
  json["factor"] = ShortestDouble(scaling.factor);
  json["attention_factor"] = ShortestDouble(scaling.attention_factor);
  json["beta_fast"] = ShortestDouble(scaling.beta_fast);
  json["beta_slow"] = ShortestDouble(scaling.beta_slow);
  json["truncate"] = scaling.truncate;
  json[kOriginalPositions] = scaling.original_max_positions;
}

void Set(const LongRopeScaling& scaling, Json& json) {
  json["rope_type"] = "longrope";
  json["short_factor"] = Floats(scaling.short_factors);
  json["long_factor"] = Floats(scaling.long_factors);
  json["attention_factor"] = ShortestDouble(scaling.attention_factor);
  json[kOriginalPositions] = scaling.original_max_positions;
}

}  // namespace

double ShortestDouble(float value) {
  std::array<char, 32> text{};
  char* end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double shortest = 0;
  std::from_chars(text.data(), end, shortest);
  return shortest;
}

absl::StatusOr<RopeSettings> ReadHfRope(const Json& json, const std::string& path,
                                        const LlamaConfig& config) {
  JsonFields fields(json, absl::StrCat("'", path, "'"));
  const bool has_theta = fields.Has("rope_theta");
  RopeSettings rope{fields.Positive("rope_theta", kDefaultTheta), std::nullopt};
  WEFT_RETURN_IF_ERROR(fields.status());
  const char* source = nullptr;  // The object that `rope` comes from.
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!fields.Has(key)) continue;
    WEFT_ASSIGN_OR_RETURN(const RopeSettings read, ReadRopeObject(json, key, path, config, rope.theta));
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

void SetHfRope(const LlamaConfig& config, Json& json) {
  Json parameters = {{"rope_type", "default"}, {"rope_theta", config.rope_theta}};
  json.erase("rope_scaling");
  if (config.rope_scaling) {
    std::visit([&](const auto& scaling) { Set(scaling, parameters); }, *config.rope_scaling);
    json["rope_scaling"] = parameters;
  }
  json["rope_theta"] = config.rope_theta;
  json["rope_parameters"] = parameters;
}

}  // namespace weft
