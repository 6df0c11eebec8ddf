// Index scores of a query with many keys, in fp32. The bits of a score depend on its query and its key alone:
// every score is the same sequence of operations, whatever the keys around it.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/core/tensor.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft {

// Keys that are scored at once.
inline constexpr int64_t kKeyChunk = 32;

// The index keys of one sequence in chunks of kKeyChunk keys, over all blocks: [chunks, dim, kKeyChunk].
// Zeros follow the last key.
class PackedIndexKeys {
 public:
  PackedIndexKeys(IndexKeys keys, int64_t batch);

  int64_t dim() const { return dim_; }
  const float* Chunk(int64_t chunk) const { return memory_.As<float>() + chunk * dim_ * kKeyChunk; }

 private:
  int64_t dim_;
  Tensor memory_;
};

// The index queries and weights of some queries of one sequence, in the order in which Score reads them.
class PackedIndexQueries {
 public:
  // Queries [first, first + count).
  PackedIndexQueries(const IndexQueries& index, int64_t batch, int64_t first, int64_t count);

  // Scores of a query, counted from `first`, with the keys of one chunk: scores[kKeyChunk].
  void Score(int64_t query, const PackedIndexKeys& keys, int64_t chunk, float* scores) const;

 private:
  int64_t groups_, dim_;
  Tensor q_;        // [count, groups, dim, heads of a group]
  Tensor weights_;  // [count, groups, heads of a group]
};

}  // namespace weft
