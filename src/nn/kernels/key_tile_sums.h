// Where the gradients of a key tile are summed: each query head has its own sum, and those of the heads that
// share a kv head are added up at the end. A kv head with one query head is summed in its target.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "src/nn/kernels/attention_plan.h"
#include "src/nn/kernels/head_rows.h"
#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"

namespace weft {

// Of one query head of one sequence: a row for each of the tile's keys.
struct TileGradients {
  HeadRows<float> dk, dv;
  float beta;  // What the rows' old values count; with 0 they are uninitialised.
};

class KeyTileSums {
 public:
  // For queries like `q`. `targets` and `beta` are those of AttentionBackward.
  KeyTileSums(const AttentionProblem& problem, const TensorView& q, absl::Span<const KeyGradients> targets,
              float beta, int64_t most_keys);

  TileGradients Of(const KeyTile& tile, int64_t batch, int64_t head) const;
  // When the tile's sums are complete. Overwrites them.
  void Store(const KeyTile& tile) const;

 private:
  const KeyGradients& TargetOf(const KeyTile& tile) const {
    return targets_[static_cast<size_t>(tile.block)];
  }
  bool InPlace(const KeyGradients& target) const;
  void StoreHead(const KeyTile& tile, int64_t batch, int64_t kv_head, HeadRows<float> TileGradients::*which,
                 const TensorView& target) const;

  const AttentionProblem& problem_;
  absl::Span<const KeyGradients> targets_;
  float beta_;
  int64_t batches_, heads_, most_keys_;
  Tensor memory_;  // [batch, heads, keys, head_dim + value_dim]
};

}  // namespace weft
