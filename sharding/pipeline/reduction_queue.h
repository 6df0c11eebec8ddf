// The reductions of a context that are under way, oldest first.
//
// Note [When an all-reduce is submitted]
// Lanes follow program order: no completion may submit anything, as ranks complete at different moments. An
// all-reduce of what its reduce-scatter leaves is therefore submitted together with it, and starts `after`
// it. One that takes a partial sum along cannot be: between the two that sum must be added, by this thread.
// Nor can one that follows a caller's reduce-scatter, of which the engine knows nothing. These are submitted
// when the reduction `max_reduce_scatters` later is, or by Drain: at a place that all ranks share, and at
// which the reduce-scatter must be over anyway, as its input's memory is needed. So the all-reduce of one
// group still runs beside the reduce-scatters of the next. The same holds for the reduce-scatter over
// replicas that stands for it where they share the optimizer.
//
// Thread safety: none. Lifetime: the context must outlive the queue.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "weft/sharding/comm_context.h"
#include "weft/sharding/reduction.h"

namespace weft {

class CommContext::ReductionQueue {
 public:
  explicit ReductionQueue(CommContext& context) : context_(context) {}

  // Submits a reduction, and completes older ones (without any in flight, this one) to keep the context's
  // bounds.
  absl::Status Submit(Reduction reduction);
  // Until every sum is where it belongs.
  absl::Status Drain();
  // After an error: forgets what was under way.
  void Clear();

 private:
  struct Entry {
    Reduction reduction;
    int64_t number;                // In order of submission.
    bool takes_partial;            // What the partial sum is added to before the all-reduce.
    Buffer output = {};            // This rank's part of the sum, until it has been added.
    Buffer updated = {};           // What a reduce-scatter over replicas leaves of it, and then the output.
    Transfer reduce_scatter = {};  // Invalid where there is none, and the input has become the output.
    bool continued = false;        // Nothing is left to submit: see the note above.
    std::vector<Work> replications = {};  // All-reduces, or reduce-scatters over replicas.

    bool scattering() const { return static_cast<bool>(reduction.input); }
    bool replicating() const { return !replications.empty(); }
  };

  absl::Status SubmitReduceScatter(Entry& entry);
  absl::Status StartCustom(Entry& entry);
  // Over the replicas, where there are any.
  absl::Status SubmitReplication(Entry& entry, const Work* after);
  void SubmitAllReduces(Entry& entry, const Work* after);
  absl::Status SubmitReplicaScatters(Entry& entry, const Work* after);
  // What follows the reduce-scatters up to this number.
  absl::Status ContinueThrough(int64_t number);
  absl::Status Continue(Entry& entry);

  absl::Status BoundReduceScatters();
  absl::Status BoundReplications();
  absl::Status ReleaseInput(Entry& entry);
  absl::Status SettleReplications(Entry& entry);
  // Takes finished entries off the front.
  absl::Status DeliverFinished();
  absl::Status Deliver(Entry& entry);
  absl::Status RunHook(const Reduction& reduction, Buffer own);
  absl::Status AddTo(Buffer& sum, Buffer addend, DType dtype, int64_t elements, float scale = 1.0F);

  template <typename Uses>
  int64_t Count(Uses uses) const;
  bool Replicates(const Reduction& reduction) const;
  int64_t OwnElements(const Reduction& reduction) const;

  CommContext& context_;
  std::deque<Entry> entries_;
  int64_t next_number_ = 0;
};

}  // namespace weft
