#include "weft/train/hf_config.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include "src/train/config/config_file.h"
#include "src/train/config/hf_architecture.h"
#include "src/train/config/hf_rope.h"
#include "src/train/files/folder_entries.h"
#include "src/train/files/json.h"
#include "src/train/files/json_fields.h"
#include "src/train/files/json_text.h"
#include "src/train/files/model_folder.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Defaults of transformers for keys that a config.json may leave out, in all architectures.
constexpr double kDefaultNormEps = 1e-6;
constexpr double kDefaultInitializerRange = 0.02;
constexpr const char* kHfConfig = "Hugging Face config.json";

// The architecture of model_type; without it, that of a Llama.
absl::StatusOr<const HfArchitecture*> ArchitectureOf(const Json& json, const JsonFields& fields) {
  if (!fields.Has("model_type")) return FindHfArchitecture("llama");
  const Json& type = json["model_type"];
  const HfArchitecture* architecture =
      type.is_string() ? FindHfArchitecture(type.get<std::string>()) : nullptr;
  if (architecture != nullptr) return architecture;
  const auto append_type = [](std::string* out, const HfArchitecture& known) {
    out->append(known.model_type);
  };
  return absl::UnimplementedError(absl::StrCat(fields.Place("model_type"), " is ", Excerpt(JsonText(type)),
                                               "; weft supports ",
                                               absl::StrJoin(kHfArchitectures, ", ", append_type)));
}

// Refuses values that weft does not support.
void CheckArchitecture(const HfArchitecture& architecture, JsonFields& fields) {
  fields.RequireOnly("mlp_bias", false);
  fields.RequireOnly("attention_dropout", 0.0);  // The kernels never form the weights that it would drop.
  fields.RequireOnly("partial_rotary_factor", 1.0);
  fields.RequireOnly("quantization_config", nullptr);
  fields.RequireOnly("use_bidirectional_attention", false);
  fields.RequireOnly("hidden_activation", Json(std::string(Name(architecture.activation))));
  if (architecture.bias == BiasKeys::kNone) fields.RequireOnly("attention_bias", false);
  if (architecture.window == WindowKeys::kNone) fields.RequireOnly("sliding_window", nullptr);
  if (architecture.window != WindowKeys::kUseSlidingWindow) fields.RequireOnly("layer_types", nullptr);
}

GateActivation ReadActivation(const HfArchitecture& architecture, const Json& json, JsonFields& fields) {
  if (!fields.Has("hidden_act")) return architecture.activation;
  const Json& value = json["hidden_act"];
  for (const GateActivation known : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
    if (value == Name(known)) return known;
  }
  if (architecture.gelu_is_tanh && value == "gelu") return GateActivation::kGeluTanh;
  fields.Fail(absl::UnimplementedError(
      absl::StrCat(fields.Place("hidden_act"), " is ", Excerpt(JsonText(value)), "; weft supports ",
                   ToAbsl(Name(GateActivation::kSilu)), " and ", ToAbsl(Name(GateActivation::kGeluTanh)))));
  return architecture.activation;
}

// The first of the sliding layers of layer_types, which must be the last ones of the model.
int64_t FirstSlidingLayer(const Json& types, int64_t layers, JsonFields& fields) {
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    fields.FailValue("layer_types",
                     absl::StrCat("it must be a list with a type for each of the ", layers, " layers"));
    return layers;
  }
  const auto is_sliding = [](const Json& type) { return type == "sliding_attention"; };
  const auto first = std::find_if(types.begin(), types.end(), is_sliding);
  const auto is_full = [](const Json& type) { return type == "full_attention"; };
  if (!std::all_of(types.begin(), first, is_full) || !std::all_of(first, types.end(), is_sliding)) {
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.Place("layer_types"), " is ", Excerpt(JsonText(types)),
                     "; weft supports layers of full_attention, then layers of sliding_attention")));
  }
  return first - types.begin();
}

// The window of the layers from `traits.first_window_layer` on.
void ReadWindow(const HfArchitecture& architecture, const Json& json, int64_t layers, JsonFields& fields,
                DecoderTraits& traits) {
  if (architecture.window == WindowKeys::kNone) return;
  const bool switched = architecture.window == WindowKeys::kUseSlidingWindow;
  const bool has_window = !switched || fields.Bool("use_sliding_window", false);
  const bool is_null = json.contains("sliding_window") && json["sliding_window"].is_null();
  const bool has_types = fields.Has("layer_types");
  if (switched) {
    traits.first_window_layer =
        has_types ? FirstSlidingLayer(json["layer_types"], layers, fields)
                  : fields.Whole("max_window_layers", 0, LlamaLimits::kLayers, kDefaultFirstWindowLayer);
  }
  if (has_window && !is_null) {
    traits.window = fields.Whole("sliding_window", 1, LlamaLimits::kPositions, kDefaultWindow);
    if (traits.first_window_layer < layers) return;
    traits.window.reset();  // No layer has it.
  } else if (has_types && traits.first_window_layer < layers) {
    fields.FailValue("layer_types", "use_sliding_window is not true, or sliding_window is null");
  }
  traits.first_window_layer = 0;
}

DecoderTraits ReadTraits(const HfArchitecture& architecture, const Json& json, const LlamaConfig& config,
                         JsonFields& fields) {
  DecoderTraits traits;
  const bool all_biases =
      architecture.bias == BiasKeys::kAttentionBias && fields.Bool("attention_bias", false);
  traits.qkv_bias = all_biases || architecture.bias == BiasKeys::kAlwaysQkv;
  traits.output_bias = all_biases;
  traits.qk_norm = architecture.qk_norm;
  traits.activation = ReadActivation(architecture, json, fields);
  if (architecture.scales_embeddings) {
    traits.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.dim)));
  }
  traits.norm_offset = architecture.norm_offset;
  ReadWindow(architecture, json, config.layers, fields, traits);
  return traits;
}

// The name of a dtype in torch.
const char* TorchName(DType dtype) {
  if (dtype == DType::kF32) return "float32";
  return dtype == DType::kBF16 ? "bfloat16" : "float16";
}

void CheckHeads(const LlamaConfig& config, JsonFields& fields) {
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

// Sets the keys of the traits that `architecture` reads.
void SetTraits(const HfArchitecture& architecture, const LlamaConfig& config, Json& json) {
  const DecoderTraits& traits = config.traits;
  json["hidden_act"] = std::string(Name(traits.activation));
  if (architecture.bias == BiasKeys::kAttentionBias) json["attention_bias"] = traits.qkv_bias;
  const Json window = traits.window ? Json(*traits.window) : Json();
  if (architecture.window == WindowKeys::kSlidingWindow) json["sliding_window"] = window;
  if (architecture.window == WindowKeys::kUseSlidingWindow) {
    json.erase("layer_types");  // transformers derives them from the other keys.
    json["use_sliding_window"] = traits.window.has_value();
    json["sliding_window"] = window;
    json["max_window_layers"] = traits.window ? traits.first_window_layer : config.layers;
  }
}

// Position of the first byte `wanted` outside of strings and of inner objects and arrays, or the size of the
// text. nullopt: one of these does not end before.
std::optional<size_t> FindOuter(absl::string_view text, char wanted) {
  int64_t level = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char byte = text[i];
    if (in_string) {
      if (byte == '\\') ++i;
      in_string = byte != '"';
      continue;
    }
    if (byte == wanted && level == 0) return i;
    in_string = byte == '"';
    if (byte == '{' || byte == '[') ++level;
    if ((byte == '}' || byte == ']') && --level < 0) return std::nullopt;
  }
  return level == 0 && !in_string ? std::optional(text.size()) : std::nullopt;
}

// A member of an object in a JSON text.
struct MemberText {
  absl::string_view text;  // With the white space around it.
  absl::string_view key;   // With its quotes.
};

// The members in the text between the braces of an object, which is not empty. nullopt: it has other text.
std::optional<std::vector<MemberText>> SplitMembers(absl::string_view text) {
  std::vector<MemberText> members;
  while (true) {
    const std::optional<size_t> end = FindOuter(text, ',');
    if (!end) return std::nullopt;
    const absl::string_view member = text.substr(0, *end);
    const std::optional<size_t> colon = FindOuter(member, ':');
    if (!colon || *colon == member.size()) return std::nullopt;
    members.push_back({member, absl::StripAsciiWhitespace(member.substr(0, *colon))});
    if (!absl::StartsWith(members.back().key, "\"")) return std::nullopt;
    if (*end == text.size()) return members;
    text.remove_prefix(*end + 1);
  }
}

// `member` as the text of a member, after the white space before `old`.
std::string InPlaceOf(absl::string_view old, absl::string_view member) {
  return absl::StrCat(old.substr(0, old.size() - absl::StripLeadingAsciiWhitespace(old).size()), member);
}

}  // namespace

absl::StatusOr<LlamaConfig> ParseHfConfig(std::string_view text, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseConfigFile(text, path, kHfConfig));
  JsonFields fields(json, absl::StrCat("'", path, "'"));
  WEFT_ASSIGN_OR_RETURN(const HfArchitecture* architecture, ArchitectureOf(json, fields));
  CheckArchitecture(*architecture, fields);
  const auto default_or = [](int64_t of_architecture, int64_t other) {
    return of_architecture > 0 ? of_architecture : other;
  };
  LlamaConfig config;
  config.vocab_size = fields.Whole("vocab_size", 1, LlamaLimits::kVocabulary);
  config.dim = fields.Whole("hidden_size", 1, LlamaLimits::kWidth);
  config.layers = fields.Whole("num_hidden_layers", 1, LlamaLimits::kLayers);
  config.heads = fields.Whole("num_attention_heads", 1, LlamaLimits::kWidth);
  config.kv_heads = fields.Whole("num_key_value_heads", 1, LlamaLimits::kWidth,
                                 default_or(architecture->kv_heads, config.heads));
  config.head_dim = fields.Whole("head_dim", 1, LlamaLimits::kWidth,
                                 default_or(architecture->head_dim, config.dim / config.heads));
  config.ffn_dim = fields.Whole("intermediate_size", 1, LlamaLimits::kFfnWidth);
  config.norm_eps = static_cast<float>(fields.Positive("rms_norm_eps", kDefaultNormEps));
  config.init_stddev = static_cast<float>(fields.Positive("initializer_range", kDefaultInitializerRange));
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", architecture->ties_head);
  config.max_positions =
      fields.Whole("max_position_embeddings", 1, LlamaLimits::kPositions, architecture->max_positions);
  config.traits = ReadTraits(*architecture, json, config, fields);
  CheckHeads(config, fields);
  WEFT_RETURN_IF_ERROR(fields.status());
  WEFT_ASSIGN_OR_RETURN(const RopeSettings rope, ReadHfRope(json, path, config));
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
  if (const absl::Status status = Validate(config); !status.ok()) {
    return absl::DataLossError(absl::StrCat("'", path, "': ", status.message()));
  }
  return config;
}

absl::StatusOr<std::string> ReadHfConfigText(const std::string& folder) {
  absl::StatusOr<std::string> text = ReadModelFile(folder, kConfigFile, kMaxConfigFileBytes);
  if (!absl::IsNotFound(text.status()) || Exists(folder)) return text;
  return absl::NotFoundError(
      absl::StrCat("there is no folder '", folder, "': weft reads models of this machine and downloads ",
                   "nothing; for a model of the Hub, run hf download NAME --local-dir DIR and give DIR"));
}

absl::StatusOr<LlamaConfig> ReadHfConfig(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadHfConfigText(folder));
  return ParseHfConfig(text, absl::StrCat(folder, "/", kConfigFile));
}

std::string FormatHfConfig(const LlamaConfig& config, std::string_view source, DType dtype) {
  Json json = ParseJson(source);
  const HfArchitecture* architecture = FindHfArchitecture("llama");
  if (!json.is_object()) {
    json = {{"architectures", {std::string(architecture->class_name)}},
            {"model_type", std::string(architecture->model_type)}};
    // Bytes have no tokens for the start and the end of a text. Without these keys transformers assumes 1 and
    // 2.
    json["bos_token_id"] = nullptr;
    json["eos_token_id"] = nullptr;
  } else if (const auto type = json.find("model_type"); type != json.end() && type->is_string()) {
    architecture = FindHfArchitecture(type->get<std::string>());
    WEFT_CHECK(architecture != nullptr, "the source is no configuration that ParseHfConfig accepts");
  }
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.dim;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["intermediate_size"] = config.ffn_dim;
  SetTraits(*architecture, config, json);
  json["mlp_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["rms_norm_eps"] = ShortestDouble(config.norm_eps);
  json["initializer_range"] = ShortestDouble(config.init_stddev);
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["max_position_embeddings"] = config.max_positions;
  SetHfRope(config, json);
  const absl::StatusOr<std::string> text = SetHfDtype(JsonText(json, 2) + "\n", kConfigFile, dtype);
  WEFT_CHECK(text.ok(), "the text of a JSON object is not one");
  return *text;
}

// Changes the text alone: Python writes values that are not JSON, and others, such as large numbers, would
// change if they were parsed and written.
absl::StatusOr<std::string> SetHfDtype(std::string_view text, const std::string& path, DType dtype) {
  const absl::string_view object = absl::StripAsciiWhitespace(ToAbsl(text));
  if (object.size() < 2 || object.front() != '{' || object.back() != '}') {
    return NotAConfigFile(path, kHfConfig);
  }
  const absl::string_view inner = absl::StripTrailingAsciiWhitespace(object.substr(1, object.size() - 2));
  std::optional<std::vector<MemberText>> members = std::vector<MemberText>();
  if (!inner.empty()) members = SplitMembers(inner);
  if (!members) return NotAConfigFile(path, kHfConfig);
  const std::string dtype_member = absl::StrCat("\"dtype\": \"", TorchName(dtype), "\"");
  std::vector<std::string> written;
  bool is_set = false;
  for (const MemberText& member : *members) {
    const bool is_dtype = member.key == "\"dtype\"" || member.key == "\"torch_dtype\"";
    if (!is_dtype) written.emplace_back(member.text);
    if (is_dtype && !std::exchange(is_set, true)) written.push_back(InPlaceOf(member.text, dtype_member));
  }
  if (!is_set) written.push_back(InPlaceOf(written.empty() ? "" : written.back(), dtype_member));
  const absl::string_view end = ToAbsl(text).substr(static_cast<size_t>(inner.end() - text.data()));
  return absl::StrCat("{", absl::StrJoin(written, ","), end);
}

absl::StatusOr<SparseAttentionConfig> ParseIndexerConfig(std::string_view text, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseConfigFile(text, path, kHfConfig));
  JsonFields fields(json, absl::StrCat("'", path, "'"));
  SparseAttentionConfig config;
  config.index_heads = fields.Whole("index_n_heads", 1, LlamaLimits::kWidth);
  config.index_dim = fields.Whole("index_head_dim", 1, LlamaLimits::kWidth);
  config.top_k = fields.Whole("index_topk", 1, LlamaLimits::kPositions);
  WEFT_RETURN_IF_ERROR(fields.status());
  if (config.index_dim % 2 != 0) fields.FailValue("index_head_dim", "rotary embedding needs an even size");
  WEFT_RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<SparseAttentionConfig> ReadIndexerConfig(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadModelFile(folder, kIndexerConfig, kMaxConfigFileBytes));
  return ParseIndexerConfig(text, absl::StrCat(folder, "/", kIndexerConfig));
}

std::string FormatIndexerConfig(const SparseAttentionConfig& config) {
  const Json json = {{"index_n_heads", config.index_heads},
                     {"index_head_dim", config.index_dim},
                     {"index_topk", config.top_k}};
  return JsonText(json, 2) + "\n";
}

}  // namespace weft
