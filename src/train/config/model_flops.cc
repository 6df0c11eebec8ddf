#include "weft/train/model_flops.h"

namespace weft {

double FlopsPerToken(const LlamaConfig& config, int64_t seq_len) {
  const int64_t query_and_output = 2 * config.dim * config.heads * config.head_dim;
  const int64_t key_and_value = 2 * config.dim * config.kv_heads * config.head_dim;
  const int64_t feed_forward = 3 * config.dim * config.ffn_dim;
  const int64_t in_products =
      config.layers * (query_and_output + key_and_value + feed_forward) + config.vocab_size * config.dim;
  const int64_t attention = config.layers * config.heads * config.head_dim * seq_len;
  return 6.0 * static_cast<double>(in_products) + 12.0 * static_cast<double>(attention);
}

}  // namespace weft
