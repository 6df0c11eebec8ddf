// Queue of the reductions of a sharded model that are under way, oldest first.
//
// Note [When an all-reduce is submitted]
// Problem: lanes follow program order, and ranks complete operations at different moments. So no completion
// may submit an operation. Rule: an all-reduce is submitted together with the reduce-scatter whose result it
// takes, and starts `after` it. Two kinds cannot be: one that takes a partial sum along, because this thread
// adds that sum in between; and one that follows a caller's reduce-scatter, which the engine does not know.
// They are submitted by the reduction `max_reduce_scatters` later, or by Drain. The same holds for the
// reduce-scatter over replicas that replaces the all-reduce where replicas share the optimizer. Why it
// suffices: that place is the same on all ranks, and the reduce-scatter must be over there anyway, since the
// memory of its input is needed. So the all-reduce of one group still overlaps the reduce-scatters of the
// next ones.
//
// Thread safety: none. Lifetime: state, memory and the lanes of reductions must outlive the queue.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "sharding/pipeline/pipeline_lanes.h"
#include "sharding/pipeline/pipeline_memory.h"
#include "sharding/pipeline/pipeline_state.h"
#include "sharding/pipeline/reduction.h"
#include "sharding/pipeline/transfer.h"

namespace weft {

class ReductionQueue {
 public:
  // Bounds on the operations in flight.
  struct Bounds {
    int max_reduce_scatters = 2;  // Each keeps one group's full gradients alive.
    int max_all_reduces = 2;
  };

  ReductionQueue(PipelineState& state, PipelineMemory& memory, const Bounds& bounds)
      : state_(state), memory_(memory), bounds_(bounds) {}

  // Submits a reduction, and completes older ones to keep the bounds (with a bound of 0, this one).
  absl::Status Submit(Reduction reduction);
  // Completes every reduction in order and runs their hooks.
  absl::Status Drain();
  // Forgets all reductions, after CommEngine::ResetAfterError.
  void Clear();

 private:
  struct Entry {
    Reduction reduction;
    int64_t number;                // Place in the order of submission.
    bool takes_partial;            // True if the partial sum is added before the all-reduce.
    Buffer output = {};            // This rank's part of the sum, until it has been added.
    Buffer updated = {};           // Output of the reduce-scatter over replicas, if there is one.
    Transfer reduce_scatter = {};  // Invalid if nothing is exchanged; then the input has become the output.
    bool is_continued = false;     // True if all its operations are submitted: see the note above.
    std::vector<Work> replications = {};  // All-reduces, or reduce-scatters over replicas.
    // Factors that the engine's collectives apply. See ScaleInCollectives.
    double scatter_scale = 1.0;
    double replication_scale = 1.0;

    bool is_scattering() const { return static_cast<bool>(reduction.input); }
    bool is_replicating() const { return !replications.empty(); }
  };

  absl::Status Enqueue(Reduction reduction);
  // Lets the last collective of a reduction apply the reduction's scale, which saves a pass over the result.
  // Nothing happens if no collective of f32 yields all elements.
  static void ScaleInCollectives(Entry& entry);
  absl::Status SubmitReduceScatter(Entry& entry);
  // Submits the exchange over the replicas, if there are any.
  absl::Status SubmitReplication(Entry& entry, const Work* after);
  static void SubmitAllReduces(Entry& entry, const Work* after);
  absl::Status SubmitReplicaScatters(Entry& entry, const Work* after);
  // Submits what follows the reduce-scatters up to this number.
  absl::Status ContinueThrough(int64_t number);
  absl::Status Continue(Entry& entry);

  absl::Status BoundReduceScatters();
  absl::Status BoundReplications();
  absl::Status ReleaseInput(Entry& entry);
  absl::Status AwaitReplications(Entry& entry);
  // Adds finished entries at the front to their sums and removes them.
  absl::Status DeliverFinished();
  absl::Status Deliver(Entry& entry);
  absl::Status RunHook(const Reduction& reduction, Buffer own);
  struct Addend {
    Buffer values;
    DType dtype;
    double scale = 1.0;
  };
  absl::Status AddTo(Buffer& sum, DType sum_dtype, Addend addend, int64_t elements);

  template <typename Uses>
  int64_t Count(Uses uses) const;

  PipelineState& state_;
  PipelineMemory& memory_;
  const Bounds bounds_;
  std::deque<Entry> entries_;
  int64_t next_number_ = 0;
};

}  // namespace weft
