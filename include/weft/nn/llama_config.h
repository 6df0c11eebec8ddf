// Configuration of a Llama decoder: its sizes and constants.
#pragma once

#include <cstdint>
#include <optional>

#include <absl/status/status.h>

#include "weft/nn/lightning_indexer.h"
#include "weft/nn/rope.h"

namespace weft {

struct LlamaConfig {
  int64_t vocab_size = 256;
  int64_t dim = 128;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t kv_heads = 4;   // Divides `heads`.
  int64_t head_dim = 32;  // Even. Usually dim / heads, but independent of it.
  int64_t ffn_dim = 352;
  float norm_eps = 1e-5F;
  double rope_theta = 10000.0;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  int64_t max_positions = 2048;  // Tokens of the longest sequence.
  float init_stddev = 0.02F;
  std::optional<SparseAttentionConfig> sparse_attention;  // Unset: dense attention.

  // The number of elements of all parameters. A tied weight counts once.
  int64_t ParameterCount() const;
};

// Largest sizes that Validate accepts. They are far above those of any model, and so small that no product of
// sizes overflows.
struct LlamaLimits {
  static constexpr int64_t kLayers = int64_t{1} << 16;
  static constexpr int64_t kWidth = int64_t{1}
                                    << 24;  // dim, heads, kv_heads, head_dim, index_heads, index_dim.
  static constexpr int64_t kFfnWidth = 4 * kWidth;
  static constexpr int64_t kVocabulary = (int64_t{1} << 31) - 1;
  static constexpr int64_t kPositions = int64_t{1} << 40;
  static constexpr int64_t kParameters = int64_t{1} << 46;
};

// Errors: kInvalidArgument (names the field, its value and what it must be).
absl::Status Validate(const LlamaConfig& config);

}  // namespace weft
