// Reduce phase: reduces every part over all ranks, each part at its owner. It is the whole of a
// reduce-scatter, and the first phase of an all-reduce. See Note [Canonical tree] for the order of additions.
//
// The owner of a part reads the inputs of its local peers directly. From each remote node it receives one
// partial sum for each maximal subtree of that node. The part's leader on the node evaluates a partial sum
// slice by slice, when the owner gives a credit for the slice. For a subtree of one rank, that rank sends its
// input instead.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/sends.h"
#include "src/comm/phases/streams.h"
#include "src/comm/phases/windowed_reduce.h"

namespace weft {

class ReducePhase {
 public:
  struct Memory {
    std::vector<WholeMemory> inputs;  // By group rank. Null for remote ranks.
    std::byte* output;                // Target of this rank's part.
    std::vector<std::byte*> copies;   // Further targets of this rank's part on this node.
  };
  // Errors: kResourceExhausted (no scratch for the partial sums of other nodes).
  static absl::StatusOr<std::unique_ptr<ReducePhase>> Create(const OperationContext& context,
                                                             const CollectivePlan& plan,
                                                             int64_t slice_elements, const Memory& memory);
  // Not copyable: tasks hold pointers to the streams.
  ReducePhase(const ReducePhase&) = delete;
  ReducePhase& operator=(const ReducePhase&) = delete;

  // Advances. Returns true if anything moved.
  absl::StatusOr<bool> Step(OperationContext& context);
  int64_t done() const { return reduce_->done(); }       // Reduced slices of this rank's part.
  bool complete() const { return reduce_->finished(); }  // This rank's part is reduced.
  bool drained() const;  // The phase is complete, and all partial sums are sent.
  // Slices of `member`'s part in this rank's input, counted from the first, that no send reads any more.
  int64_t ReadSlices(int member) const;
  // Adds the bootstrap ranks that the phase waits for.
  void AddAwaited(std::set<int>& ranks) const;

 private:
  ReducePhase(const OperationContext& context, const CollectivePlan& plan, int64_t slice_elements,
              Memory memory);
  absl::Status PlanOwnPart(const OperationContext& context);
  void PlanPartials(const OperationContext& context);
  Slicing SlicingOf(int member) const {
    return {plan_.parts.counts[static_cast<size_t>(member)], slice_elements_};
  }
  // `member`'s part in the input of `owner`.
  SliceMemory PartOf(int owner, int member) const {
    return PartMemory(plan_.parts, memory_.inputs[static_cast<size_t>(owner)], member, SizeOf(plan_.dtype));
  }

  const CollectivePlan plan_;
  const int64_t slice_elements_;
  const Memory memory_;
  std::unique_ptr<WindowedReduce> reduce_;  // The reduction of this rank's part.
  ScratchSlots slots_;                      // Scratch for the partial sums that this rank sends.
  // By member: the stream that sends the member its part of this rank's input. Null if there is none.
  std::vector<const OutgoingStream*> own_sends_;
  Sends partials_;  // Partial sums for remote owners. The plain partial of a single rank is its input.
};

// Target of the reduction of a part to `output`. Sets the scale of an average, and non-temporal stores for
// results that are too large for the caches.
ReduceTarget TargetOf(const GroupPlacement& placement, const CollectivePlan& plan, std::byte* output);

// Dtype of partial sums between nodes. f32 for f16, so that they are not rounded. bf16 stays bf16, which
// halves the bytes on the wire.
DType PartialDType(DType dtype);

}  // namespace weft
