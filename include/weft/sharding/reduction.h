// A reduction of a group's gradients, and the sums that several of them add up to.
//
// Note [Order of additions]
// One reduction is the canonical tree over the ranks of the shard group, continued over the replicas (see
// docs/engine.md). Several are added up on the rank that owns the shard, in fp32, element by element, in the
// order in which they were submitted: (((a + b) + c) + …). A reduction over the shard group alone adds to the
// *partial* sum. The next one that goes on to the replicas takes that sum with it: what is all-reduced, once,
// is partial + own, rounded to the reduce dtype if there are replicas at all. Nothing in this depends on
// layout or schedule, nor on which replica updates an element, so neither do the bits.
//
// Thread safety: values of one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/types/span.h>

#include "weft/core/dtype.h"
#include "weft/memory/buffer_pool.h"
#include "weft/sharding/custom_collectives.h"
#include "weft/sharding/replica_slices.h"

namespace weft {

enum class ReduceScope : uint8_t {
  kShard,              // Reduce-scatter only: adds to the partial sum, which no optimizer may see.
  kShardAndReplicate,  // And over the replicas, together with the partial sum: adds to the reduced sum.
};

// What the reductions of a group have come to on this rank, in fp32. Empty: nothing yet.
struct GradientSums {
  Buffer partial;  // Of its shard, over the shard group only.
  Buffer reduced;  // Of what it updates, over all ranks: see replica_slices.h.
  int under_way = 0;
  // There is a partial sum, or one on its way, that the next full reduction takes along.
  bool partial_ahead = false;
};

// Sees one reduction's result, what this rank updates in fp32, before it is added to the reduced sum; may
// change it, and may communicate. Runs inside CommContext::FinishBackward, on the thread that calls it, in
// the order of submission, so at the same place on all ranks. An error fails the context.
using GradientHook = std::function<absl::Status(const std::string& group, absl::Span<float> shard)>;

struct Reduction {
  std::string label;
  DType dtype;
  ReduceScope scope;
  Buffer input;                        // Full gradients: the parts of all shard ranks, end to end.
  std::vector<int64_t> counts;         // Elements of each rank's part.
  std::vector<ReplicaSlice> slices;    // Of this rank's part: what is summed over each bucket's replicas.
  float scale;                         // What a sum over all ranks is multiplied by, in fp32.
  std::shared_ptr<GradientSums> sums;  // May be forgotten by its owner meanwhile.
  GradientHook hook;                   // Unset: none. For kShardAndReplicate only.
  CustomReduceScatter reduce_scatter;  // Unset: the engine's.
};

}  // namespace weft
