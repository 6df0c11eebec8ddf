// The gradients of one key tile as each query head sees it, and their sum over the heads that share a kv
// head.
#pragma once

#include <cstdint>

#include "src/nn/attention_tiles.h"
#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"

namespace weft {

// Of one query head of one sequence: [keys, head_dim] and [keys, value_dim].
struct TileGradients {
  float* dk;
  float* dv;
};

class KeyTileSums {
 public:
  KeyTileSums(const AttentionProblem& problem, int64_t batches, int64_t heads, int64_t most_keys,
              int64_t head_dim, int64_t value_dim);

  // Uninitialised. `item` is batch * heads + head.
  TileGradients Of(int64_t item) const;
  // Each kv head's target = the sum over its query heads + beta times what it holds. Overwrites the parts.
  void Store(const KeyTile& tile, const KeyGradients& targets, float beta) const;

 private:
  void StoreHead(const KeyTile& tile, float* TileGradients::*which, const TensorView& target, int64_t batch,
                 int64_t kv_head, float beta) const;

  const AttentionProblem& problem_;
  int64_t batches_, heads_;
  int64_t key_elements_, value_elements_;
  Tensor memory_;
};

}  // namespace weft
