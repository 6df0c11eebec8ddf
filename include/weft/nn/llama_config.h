// Configuration of a decoder of the Llama family: its sizes and constants, and the traits by which its
// architectures differ.
#pragma once

#include <cstdint>
#include <optional>

#include <absl/status/status.h>

#include "weft/nn/attention_mask.h"
#include "weft/nn/gated_unit.h"
#include "weft/nn/rope.h"
#include "weft/nn/sparse/lightning_indexer.h"

namespace weft {

// Differences of other decoders from a Llama, which has the defaults. weft/train/hf_config.h lists the
// architectures.
struct DecoderTraits {
  bool qkv_bias = false;     // Biases of the query, key and value projections.
  bool output_bias = false;  // Bias of the attention's output projection.
  bool qk_norm = false;      // RMSNorm of each query head and key head before the rotary embedding.
  // Keys that a query attends to: itself and those before it. Unset: all keys before it too.
  std::optional<int64_t> window = std::nullopt;
  int64_t first_window_layer = 0;  // Earlier layers have no window.
  GateActivation activation = GateActivation::kSilu;
  float embedding_scale = 1.0F;  // Factor of the embedded tokens.
  float norm_offset = 0.0F;      // Norms, but not those of heads, multiply by norm_offset + weight.

  bool operator==(const DecoderTraits&) const = default;
};

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
  std::optional<RopeScaling> rope_scaling;
  // Tokens of the sequences, for the scalings that depend on them (dynamic and longrope). 0: no more than the
  // positions of the first training.
  int64_t rope_sequence = 0;
  bool tie_word_embeddings = false;
  int64_t max_positions = 2048;  // Tokens of the longest sequence, but see PositionLimit.
  float init_stddev = 0.02F;
  std::optional<SparseAttentionConfig> sparse_attention;  // Unset: dense attention.

  DecoderTraits traits;

  // The number of elements of all parameters. A tied weight counts once.
  int64_t ParameterCount() const;
  // The mask of a layer's dense attention.
  AttentionMask MaskOf(int64_t layer) const;
  // The tokens of the longest sequence that a model with these frequencies computes. With the scalings that
  // depend on the length of the sequences, it is rope_sequence if that is beyond the first training.
  int64_t PositionLimit() const;
  // Pure. The tokens of the longest sequence for which rope_sequence can be set.
  int64_t LongestSequence() const;
};

// Largest sizes that Validate accepts. They are far above those of any model, and so small that no product of
// sizes overflows.
struct LlamaLimits {
  static constexpr int64_t kLayers = int64_t{1} << 16;
  // dim, heads, kv_heads, head_dim, index_heads and index_dim.
  static constexpr int64_t kWidth = int64_t{1} << 24;
  static constexpr int64_t kFfnWidth = 4 * kWidth;
  static constexpr int64_t kVocabulary = (int64_t{1} << 31) - 1;
  static constexpr int64_t kPositions = int64_t{1} << 40;
  static constexpr int64_t kParameters = int64_t{1} << 46;
};

// Errors: kInvalidArgument (names the field, its value and what it must be).
absl::Status Validate(const LlamaConfig& config);

}  // namespace weft
