// Reduction of a parameter group's gradients, and the sums that several reductions add up to.
//
// Note [Order of additions]
// Problem: a sum of floats depends on the order of its additions.
// Rule: one reduction evaluates the canonical tree over the ranks of the shard group, continued over the
// replicas (see docs/engine.md). The rank that owns a shard adds several reductions in the master's dtype,
// element by element, in the order of their submission: (((a + b) + c) + ...). A reduction over the shard
// group alone adds to the *partial sum*. The next one over the replicas takes that sum along: the all-reduce
// runs once, over partial + own, rounded to the reduce dtype if there are replicas. Why it suffices: neither
// layout nor schedule nor the replica that updates an element enters the order of these additions. Within one
// reduction the layout may matter: see weft/sharding/policy.h.
//
// Thread safety: values of one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "sharding/pipeline/pipeline_lanes.h"
#include "sharding/plan/replica_slices.h"
#include "weft/core/dtype.h"
#include "weft/memory/buffer_pool.h"
#include "weft/sharding/custom_collectives.h"

namespace weft {

enum class ReduceScope : uint8_t {
  kShard,              // Reduce-scatter only. Adds to the partial sum, which no optimizer may see.
  kShardAndReplicate,  // Reduce-scatter, then the replicas. Adds to the reduced sum, with the partial sum.
};

// Sums of a group's gradients on this rank, in its master's dtype. An empty buffer: there is none yet.
struct GradientSums {
  Buffer partial;     // Shape of this rank's shard; summed over the shard group only.
  Buffer reduced;     // Shape of the slices that this rank updates (replica_slices.h); summed over all ranks.
  int under_way = 0;  // Reductions submitted and not yet added.
  // True if a partial sum exists, or will before the next submission takes effect.
  bool has_partial = false;
};

struct Reduction {
  PipelineLanes* lanes;  // Those of the group's mesh.
  std::string label;
  DType dtype;      // What the collectives send.
  DType sum_dtype;  // What GradientSums hold: the master's.
  ReduceScope scope;
  Priority priority;
  Buffer input;                        // Full gradients, with the parts of all shard ranks.
  PipelineLanes::Parts parts;          // Where they lie in the input. Null: end to end.
  std::vector<int64_t> counts;         // Elements of each shard rank's part.
  std::vector<ReplicaSlice> slices;    // Slices of this rank's part, one for each replicate bucket.
  double scale;                        // Factor of a sum over all ranks, applied in sum_dtype.
  std::shared_ptr<GradientSums> sums;  // Its owner may drop it while the reduction is under way.
  GradientHook hook;                   // Null: none. For kShardAndReplicate only.
  // Called when the result has been added to the reduced sum; must not communicate. Null: none. For
  // kShardAndReplicate only.
  std::function<absl::Status()> reduced_hook;
  CustomReduceScatter reduce_scatter;  // Null: the engine's.
};

}  // namespace weft
