#include "weft/nn/llama_config.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {

namespace {

// The number of elements of all parameters. It may be above the range of 64 bits, but not of double.
template <typename Number>
Number CountParameters(const LlamaConfig& config) {
  const auto dim = static_cast<Number>(config.dim);
  const auto heads = static_cast<Number>(2 * config.heads + 2 * config.kv_heads);
  const Number attention = dim * static_cast<Number>(config.head_dim) * heads;
  const Number biases = (config.traits.qkv_bias ? static_cast<Number>(config.head_dim) *
                                                      static_cast<Number>(config.heads + 2 * config.kv_heads)
                                                : 0) +
                        (config.traits.output_bias ? dim : 0);
  const Number head_norms = config.traits.qk_norm ? static_cast<Number>(2 * config.head_dim) : 0;
  const Number feed_forward = 3 * dim * static_cast<Number>(config.ffn_dim);
  const Number norms = 2 * dim + head_norms;
  Number indexer = 0;
  if (config.sparse_attention.has_value()) {
    const auto index_heads = static_cast<Number>(config.sparse_attention->index_heads);
    const auto index_dim = static_cast<Number>(config.sparse_attention->index_dim);
    indexer = dim * (index_heads * index_dim + index_dim + index_heads) + 2 * index_dim;
  }
  const Number tables = static_cast<Number>(config.vocab_size) * dim * (config.tie_word_embeddings ? 1 : 2);
  return static_cast<Number>(config.layers) * (attention + biases + feed_forward + norms + indexer) + tables +
         dim;
}

}  // namespace

int64_t LlamaConfig::ParameterCount() const { return CountParameters<int64_t>(*this); }

AttentionMask LlamaConfig::MaskOf(int64_t layer) const {
  // A window counts the query itself.
  const bool has_window = traits.window.has_value() && layer >= traits.first_window_layer;
  return {.causal = true, .keys_before = has_window ? std::optional(*traits.window - 1) : std::nullopt};
}

int64_t LlamaConfig::PositionLimit() const {
  if (!rope_scaling.has_value()) return max_positions;
  if (std::holds_alternative<DynamicRopeScaling>(*rope_scaling)) {
    return std::max(max_positions, rope_sequence);
  }
  const auto* longrope = std::get_if<LongRopeScaling>(&*rope_scaling);
  if (longrope == nullptr || rope_sequence > longrope->original_max_positions) return max_positions;
  return std::min(max_positions, longrope->original_max_positions);
}

int64_t LlamaConfig::LongestSequence() const {
  const auto* dynamic = rope_scaling.has_value() ? std::get_if<DynamicRopeScaling>(&*rope_scaling) : nullptr;
  if (dynamic == nullptr) return max_positions;
  const double longest = static_cast<double>(dynamic->factor) * static_cast<double>(max_positions);
  return std::max(max_positions,
                  static_cast<int64_t>(std::min(longest, static_cast<double>(LlamaLimits::kPositions))));
}

namespace {

struct Range {
  const char* name;
  int64_t value;
  int64_t most;
};

absl::Status CheckRanges(std::initializer_list<Range> fields) {
  for (const Range& field : fields) {
    if (field.value >= 1 && field.value <= field.most) continue;
    const bool small = field.value < 1;
    return absl::InvalidArgumentError(absl::StrCat(field.name, " is ", field.value, "; it must be at ",
                                                   small ? "least " : "most ", small ? 1 : field.most));
  }
  return absl::OkStatus();
}

absl::Status Validate(const SparseAttentionConfig& config) {
  WEFT_RETURN_IF_ERROR(CheckRanges({{"top_k", config.top_k, LlamaLimits::kPositions},
                                    {"index_heads", config.index_heads, LlamaLimits::kWidth},
                                    {"index_dim", config.index_dim, LlamaLimits::kWidth}}));
  if (config.index_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("index_dim is ", config.index_dim, "; rotary embedding needs an even index_dim"));
  }
  return absl::OkStatus();
}

absl::Status CheckFactor(float factor) {
  if (factor > 0.0F && std::isfinite(factor)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rope scaling: a factor is ", factor, "; it must be positive"));
}

absl::Status CheckScaling(const Llama3RopeScaling& scaling, const LlamaConfig& /*config*/) {
  if (scaling.factor > 0.0F && scaling.high_freq_factor > scaling.low_freq_factor &&
      scaling.low_freq_factor > 0.0F && scaling.original_max_positions >= 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "rope scaling: factor and low_freq_factor must be positive, high_freq_factor above low_freq_factor, "
      "and original_max_positions at least 1");
}

absl::Status CheckScaling(const LinearRopeScaling& scaling, const LlamaConfig& /*config*/) {
  return CheckFactor(scaling.factor);
}

absl::Status CheckScaling(const DynamicRopeScaling& scaling, const LlamaConfig& config) {
  WEFT_RETURN_IF_ERROR(CheckFactor(scaling.factor));
  if (config.head_dim <= 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_dim is ", config.head_dim, "; dynamic rope scaling needs heads of more than 2 elements"));
  }
  const auto& sparse = config.sparse_attention;
  if (sparse && sparse->rope_dim() <= 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "index_dim is ", sparse->index_dim, ", of which rotary embedding turns ", sparse->rope_dim(),
        " elements; dynamic rope scaling needs more than 2, so an index_dim of at least 8"));
  }
  return absl::OkStatus();
}

absl::Status CheckScaling(const YarnRopeScaling& scaling, const LlamaConfig& config) {
  WEFT_RETURN_IF_ERROR(CheckFactor(scaling.factor));
  WEFT_RETURN_IF_ERROR(CheckFactor(scaling.attention_factor));
  if (scaling.beta_slow > 0.0F && scaling.beta_fast >= scaling.beta_slow &&
      scaling.original_max_positions >= 1 && config.rope_theta > 1.0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "rope scaling: beta_slow must be positive and at most beta_fast, original_max_positions at least 1, "
      "and rope_theta above 1");
}

absl::Status CheckScaling(const LongRopeScaling& scaling, const LlamaConfig& config) {
  WEFT_RETURN_IF_ERROR(CheckFactor(scaling.attention_factor));
  for (const std::vector<float>* factors : {&scaling.short_factors, &scaling.long_factors}) {
    if (static_cast<int64_t>(factors->size()) != config.head_dim / 2) {
      return absl::InvalidArgumentError(absl::StrCat("rope scaling: longrope has ", factors->size(),
                                                     " factors; a head_dim of ", config.head_dim, " needs ",
                                                     config.head_dim / 2));
    }
    for (const float factor : *factors) WEFT_RETURN_IF_ERROR(CheckFactor(factor));
  }
  if (scaling.original_max_positions < 1) {
    return absl::InvalidArgumentError("rope scaling: original_max_positions must be at least 1");
  }
  if (config.sparse_attention && config.sparse_attention->rope_dim() != config.head_dim) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope scaling: longrope has factors for heads of ", config.head_dim,
                     ", but the indexers' rotary embedding has ", config.sparse_attention->rope_dim(),
                     "; use dense attention"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const DecoderTraits& traits, const LlamaConfig& config) {
  if (traits.window.has_value()) {
    if (*traits.window < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("the attention window is ", *traits.window, "; it must have at least 2 keys"));
    }
    if (config.sparse_attention) {
      return absl::InvalidArgumentError(absl::StrCat("the model has an attention window of ", *traits.window,
                                                     ", and sparse attention has none; use dense attention"));
    }
  }
  if (!(traits.embedding_scale > 0.0F) || !std::isfinite(traits.embedding_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("embedding_scale is ", traits.embedding_scale, "; it must be positive"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const LlamaConfig& config) {
  WEFT_RETURN_IF_ERROR(CheckRanges({{"vocab_size", config.vocab_size, LlamaLimits::kVocabulary},
                                    {"dim", config.dim, LlamaLimits::kWidth},
                                    {"layers", config.layers, LlamaLimits::kLayers},
                                    {"heads", config.heads, LlamaLimits::kWidth},
                                    {"kv_heads", config.kv_heads, LlamaLimits::kWidth},
                                    {"head_dim", config.head_dim, LlamaLimits::kWidth},
                                    {"ffn_dim", config.ffn_dim, LlamaLimits::kFfnWidth},
                                    {"max_positions", config.max_positions, LlamaLimits::kPositions}}));
  if (config.sparse_attention.has_value()) WEFT_RETURN_IF_ERROR(Validate(*config.sparse_attention));
  if (const auto count = CountParameters<double>(config);
      count > static_cast<double>(LlamaLimits::kParameters)) {
    return absl::InvalidArgumentError(absl::StrCat("the sizes give ", count, " parameters; at most ",
                                                   LlamaLimits::kParameters, " are possible"));
  }
  if (config.heads % config.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("kv_heads is ", config.kv_heads,
                                                   ", which does not divide the ", config.heads,
                                                   " heads; choose a divisor"));
  }
  if (config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", config.head_dim, "; rotary embedding needs an even head_dim"));
  }
  if (!(config.rope_theta > 0.0) || !(config.norm_eps > 0.0F)) {
    return absl::InvalidArgumentError(absl::StrCat("rope_theta is ", config.rope_theta, " and norm_eps ",
                                                   config.norm_eps, "; both must be positive"));
  }
  if (config.rope_scaling.has_value()) {
    WEFT_RETURN_IF_ERROR(
        std::visit([&](const auto& scaling) { return CheckScaling(scaling, config); }, *config.rope_scaling));
  }
  return Validate(config.traits, config);
}

}  // namespace weft
