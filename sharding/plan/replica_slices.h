// Which elements of a shard each of its replicas updates.
//
// All replicas hold the same shard. Usually each updates all of it, from gradients that an all-reduce gives
// to all alike. With the optimizer sharded over replicas, each updates a part of every bucket's slice:
// gradients are reduce-scattered to these parts, which lie end to end in what a rank keeps of them, and the
// updated values are all-gathered in place. Parts are as even as whole cache lines can be.
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/types/span.h>

#include "weft/core/dtype.h"
#include "weft/mesh/process_group.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

struct ReplicaSlice {
  int bucket;
  FlatRange range;              // Of the shard: what is reduced over the bucket's replicas.
  std::vector<int64_t> counts;  // Elements that each of them updates, in rank order. Empty: each updates all.
  FlatRange own;                // Of the shard: what this rank updates.

  // What replica `rank` updates.
  FlatRange PartOf(int rank) const;
};

// Every replica updates all of `layout`'s bucket slices.
std::vector<ReplicaSlice> WholeSlices(const FlatLayout& layout, int shard_rank);
// Each updates a part of them, which are reduced in `dtype`; `replicas`: the group of each bucket, with this
// rank's place in it.
std::vector<ReplicaSlice> DividedSlices(const FlatLayout& layout, int shard_rank, DType dtype,
                                        absl::Span<const ProcessGroup> replicas);

// Elements that this rank updates.
int64_t UpdatedElements(absl::Span<const ReplicaSlice> slices);

// What of a piece lies in a range of the shard: up to three pieces, as whole runs and parts of them.
std::vector<ShardPiece> CutPiece(const ShardPiece& piece, const FlatRange& range);

}  // namespace weft
