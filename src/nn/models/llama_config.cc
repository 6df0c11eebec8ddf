#include "weft/nn/llama_config.h"

#include <initializer_list>

#include <absl/strings/str_cat.h>

namespace weft {

int64_t LlamaConfig::ParameterCount() const {
  const int64_t attention = dim * head_dim * (2 * heads + 2 * kv_heads);
  const int64_t feed_forward = 3 * dim * ffn_dim;
  const int64_t norms = 2 * dim;
  const int64_t tables = vocab_size * dim * (tie_word_embeddings ? 1 : 2);
  return layers * (attention + feed_forward + norms) + tables + dim;
}

absl::Status Validate(const LlamaConfig& config) {
  struct Positive {
    const char* name;
    int64_t value;
  };
  for (const Positive& field : std::initializer_list<Positive>{{"vocab_size", config.vocab_size},
                                                               {"dim", config.dim},
                                                               {"layers", config.layers},
                                                               {"heads", config.heads},
                                                               {"kv_heads", config.kv_heads},
                                                               {"head_dim", config.head_dim},
                                                               {"ffn_dim", config.ffn_dim},
                                                               {"max_positions", config.max_positions}}) {
    if (field.value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(field.name, " is ", field.value, "; it must be at least 1"));
    }
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
