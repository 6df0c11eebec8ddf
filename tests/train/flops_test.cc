#include "weft/train/flops.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(FlopsPerToken, CountsProductsOfWeightsAndOfAttention) {
  LlamaConfig config;
  config.vocab_size = 7;
  config.dim = 4;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 2;
  config.ffn_dim = 3;
  // Matrices of a layer: q and o 4x4, k and v 4x2, and three of 4x3.
  constexpr int64_t kLayer = 2 * 16 + 2 * 8 + 3 * 12;
  for (const bool tied : {false, true}) {
    config.tie_word_embeddings = tied;
    EXPECT_EQ(FlopsPerToken(config, 10), 6.0 * (2 * kLayer + 7 * 4) + 12.0 * 2 * 2 * 2 * 10);
    // Frozen weights have no products for their gradients.
    EXPECT_EQ(FlopsPerToken(config, 10, 24),
              FlopsPerToken(config, 10) - 2.0 * (2 * kLayer + 7 * 4) + 6.0 * 24);
  }
}

TEST(FlopsPerToken, CountsTheKeysOfWindows) {
  LlamaConfig config;
  config.layers = 3;
  const double dense = FlopsPerToken(config, 10);
  const auto heads = static_cast<double>(config.heads * config.head_dim);
  config.traits.window = 4;
  EXPECT_EQ(FlopsPerToken(config, 10), dense - 12.0 * heads * 3 * 6);
  config.traits.first_window_layer = 2;
  EXPECT_EQ(FlopsPerToken(config, 10), dense - 12.0 * heads * 6);
  config.traits.window = 20;
  EXPECT_EQ(FlopsPerToken(config, 10), dense);
}

TEST(FlopsPerToken, CountsSelectedKeysAndTheScoresOfAllKeys) {
  LlamaConfig config;
  config.dim = 4;
  config.layers = 2;
  config.heads = 2;
  config.head_dim = 2;
  constexpr int64_t kLength = 10;
  // Parameters of an indexer: 4 x (3 heads of 6, one key of 6, 3 weights).
  constexpr double kIndexer = 4 * (18 + 6 + 3);
  const double dense = FlopsPerToken(config, kLength);
  for (const int64_t top_k : {3, 10, 11}) {
    config.sparse_attention = SparseAttentionConfig{top_k, 3, 6};
    const auto selected = static_cast<double>(std::min(top_k, kLength));
    EXPECT_EQ(FlopsPerToken(config, kLength), dense - 12.0 * 2 * 2 * 2 * (kLength - selected) +
                                                  2 * (4 * kIndexer + 18 * (2 * kLength + 4 * selected)));
  }
}

}  // namespace
}  // namespace weft
