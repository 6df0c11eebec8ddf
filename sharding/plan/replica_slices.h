// Elements of a shard that each of its replicas updates.
//
// All replicas hold the same shard. By default each updates all of it, from gradients that an all-reduce
// gives to all. With the optimizer sharded over replicas, each updates one part of every bucket's slice:
// gradients are reduce-scattered to these parts, which a rank keeps end to end, and updated values are
// all-gathered in place. Parts differ by at most one cache line.
//
// Pure.
// Thread safety: values.
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
  FlatRange range;              // Range of the shard that is reduced over the bucket's replicas.
  std::vector<int64_t> counts;  // Elements that each replica updates, in rank order. Empty: each updates all.
  FlatRange own;                // Range of the shard that this rank updates.

  // Range of the shard that replica `rank` updates.
  FlatRange PartOf(int rank) const;
};

// Slices of which every replica updates all.
std::vector<ReplicaSlice> WholeSlices(const FlatLayout& layout, int shard_rank);
// Slices of which each replica updates a part. `dtype`: reduce dtype. `replicas`: the group of each bucket,
// with this rank's place in it.
std::vector<ReplicaSlice> DividedSlices(const FlatLayout& layout, int shard_rank, DType dtype,
                                        absl::Span<const ProcessGroup> replicas);

// Ranges of the image that hold the elements of a slice, by the replica that updates them. REQUIRES: the
// layout is zero copy; `slice` is of `shard_rank` and divided.
std::vector<std::vector<FlatRange>> ReplicaImageRanges(const FlatLayout& layout, int shard_rank,
                                                       const ReplicaSlice& slice);

// Number of elements that this rank updates.
int64_t UpdatedElements(absl::Span<const ReplicaSlice> slices);

// Intersection of a piece with a range of the shard: up to three pieces, of whole runs and parts of runs.
std::vector<ShardPiece> CutPiece(const ShardPiece& piece, const FlatRange& range);

}  // namespace weft
