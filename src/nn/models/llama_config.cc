#include "weft/nn/llama_config.h"

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
  const Number feed_forward = 3 * dim * static_cast<Number>(config.ffn_dim);
  const Number norms = 2 * dim;
  Number indexer = 0;
  if (config.sparse_attention.has_value()) {
    const auto index_heads = static_cast<Number>(config.sparse_attention->index_heads);
    const auto index_dim = static_cast<Number>(config.sparse_attention->index_dim);
    indexer = dim * (index_heads * index_dim + index_dim + index_heads) + 2 * index_dim;
  }
  const Number tables = static_cast<Number>(config.vocab_size) * dim * (config.tie_word_embeddings ? 1 : 2);
  return static_cast<Number>(config.layers) * (attention + feed_forward + norms + indexer) + tables + dim;
}

}  // namespace

int64_t LlamaConfig::ParameterCount() const { return CountParameters<int64_t>(*this); }

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
    const Llama3RopeScaling& scaling = *config.rope_scaling;
    if (!(scaling.factor > 0.0F) || !(scaling.high_freq_factor > scaling.low_freq_factor) ||
        !(scaling.low_freq_factor > 0.0F) || scaling.original_max_positions < 1) {
      return absl::InvalidArgumentError(
          "rope scaling: factor and low_freq_factor must be positive, high_freq_factor above "
          "low_freq_factor, and "
          "original_max_positions at least 1");
    }
  }
  return absl::OkStatus();
}

}  // namespace weft
