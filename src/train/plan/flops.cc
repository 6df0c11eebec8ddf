#include "weft/train/flops.h"

#include <algorithm>

namespace weft {
namespace {

// Operations of the indexers for one token; see FlopsPerToken.
double IndexerFlopsPerToken(const LlamaConfig& config, const SparseAttentionConfig& sparse, int64_t seq_len,
                            int64_t selected) {
  const int64_t width = sparse.index_heads * sparse.index_dim;
  const int64_t in_products = config.dim * (width + sparse.index_dim + sparse.index_heads);
  return static_cast<double>(config.layers) *
         static_cast<double>(4 * in_products + width * (2 * seq_len + 4 * selected));
}

}  // namespace

double FlopsPerToken(const LlamaConfig& config, int64_t seq_len, std::optional<int64_t> adapter_elements) {
  const auto& sparse = config.sparse_attention;
  const int64_t keys = sparse ? std::min(sparse->top_k, seq_len) : seq_len;
  // Keys of all layers: a window limits those of its layers.
  const int64_t window_layers = config.traits.window ? config.layers - config.traits.first_window_layer : 0;
  const int64_t layer_keys = (config.layers - window_layers) * keys +
                             window_layers * std::min(config.traits.window.value_or(keys), keys);
  const int64_t query_and_output = 2 * config.dim * config.heads * config.head_dim;
  const int64_t key_and_value = 2 * config.dim * config.kv_heads * config.head_dim;
  const int64_t feed_forward = 3 * config.dim * config.ffn_dim;
  const int64_t in_products =
      config.layers * (query_and_output + key_and_value + feed_forward) + config.vocab_size * config.dim;
  const int64_t attention = config.heads * config.head_dim * layer_keys;
  const double of_weights =
      adapter_elements ? 4.0 * static_cast<double>(in_products) + 6.0 * static_cast<double>(*adapter_elements)
                       : 6.0 * static_cast<double>(in_products);
  return of_weights + 12.0 * static_cast<double>(attention) +
         (sparse ? IndexerFlopsPerToken(config, *sparse, seq_len, keys) : 0.0);
}

}  // namespace weft
