// Accumulators of dK and dV for one key tile, in fp32. Each query head has its own; Store then adds up the
// heads that share a kv head, in order. If every kv head has a single query head and the targets are f32, the
// accumulators are the targets themselves.
//
// Thread safety: HeadGradients may be called from any thread; Store by one thread, after all heads are done.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "src/nn/attention/attention_plan.h"
#include "src/nn/attention/head_rows.h"
#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"

namespace weft {

// Accumulators of one query head of one sequence: dk [keys, head_dim] and dv [keys, value_dim] of the tile's
// keys.
struct TileGradients {
  HeadRows<float> dk, dv;
  float beta;  // Factor of the old values in the first sum. If 0, the old values are undefined.
};

class KeyTileAccumulator {
 public:
  // `q` gives the batch, heads and head_dim. `targets` and `beta` are `keys` and `key_beta` of
  // AttentionGradients. `max_keys` is the size of the largest key tile.
  KeyTileAccumulator(const AttentionProblem& problem, const TensorView& q,
                     absl::Span<const KeyGradients> targets, float beta, int64_t max_keys);

  TileGradients HeadGradients(const KeyTile& tile, int64_t batch, int64_t head) const;
  // Writes the sums of the tile to its targets. Overwrites the accumulators.
  // REQUIRES: all query heads have added their gradients of this tile.
  void Store(const KeyTile& tile) const;

 private:
  const KeyGradients& TargetOf(const KeyTile& tile) const {
    return targets_[static_cast<size_t>(tile.block)];
  }
  bool AccumulatesInPlace(const KeyGradients& target) const;
  void StoreHead(const KeyTile& tile, int64_t batch, int64_t kv_head, HeadRows<float> TileGradients::*which,
                 const TensorView& target) const;

  const AttentionProblem& problem_;
  absl::Span<const KeyGradients> targets_;
  float beta_;
  int64_t batches_, heads_, max_keys_;
  Tensor memory_;  // [batch, heads, max_keys, head_dim + value_dim], reused by all tiles.
};

}  // namespace weft
