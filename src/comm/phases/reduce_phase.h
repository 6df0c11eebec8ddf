// Reduce phase: reduces every part over all ranks, each part at its owner. It is the whole of a
// reduce-scatter, and the first phase of an all-reduce. See Note [Canonical tree] for the order of additions.
//
// The owner of a part reads the inputs of its local peers directly, or sums of them if the node has several
// share domains (Note [Domain sums]). From each remote node it receives one
// partial sum for each maximal subtree of that node. The part's leader on the node evaluates a partial sum
// slice by slice, when the owner gives a credit for the slice. For a subtree of one rank, that rank sends its
// input instead.
//
// Note [Reduce window]
// Problem: with a ring for each partial sum, scratch memory would grow with the number of nodes. If partial
// sums shared it in the order of their arrival, they could fill it without one of them being of use.
// Rule: the stages of all slices, in order, need the partial sums in one fixed order (Note [Reduction
// stages]). A partial sum at position p of that order has slot p % slots, and gets a credit only if p is less
// than `slots` ahead of the first position that is still needed. If `slots` is a multiple of the partial sums
// of a slice, the slots of each sender are neighbors instead, so that runs of slices fit them (Note [Runs of
// slices]). Each position then has another slot, but reuses that of the position `slots` before, as well.
// Why it suffices: the window holds all partial sums of the next stage, whatever has arrived. They all have
// credits sooner or later, as a credited slice needs nothing else (Note [Credits]). So the stage runs, and
// the window moves on.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/domain_sums.h"
#include "src/comm/phases/sends.h"
#include "src/comm/phases/streams.h"
#include "src/comm/trees/reduction_stages.h"

namespace weft {

// Reduction of this rank's part from local inputs and from the partial sums of other nodes, which it receives
// into a bounded window of scratch memory. See Note [Reduce window].
class WindowedReduce {
 public:
  // Source of the partial sum of a remote subtree.
  struct Remote {
    CreditScheduler::Channel channel;
    DType dtype;        // Of the partial sum on the wire.
    bool lies_in_part;  // The sender has it in memory end to end: it is the input of one rank.
  };
  struct Plan {
    Slicing slicing;
    DType dtype;
    ReduceOp op;
    ReduceTarget target;   // Of the whole part.
    int crossing_outputs;  // Copies of the target in other share domains of the node.
    std::shared_ptr<const ReductionStages> stages;
    absl::FunctionRef<ReduceStream::Leaf(const StageInput&)> local_input;
    absl::FunctionRef<Remote(int subtree)> remote_input;
    // Null if no local input is a sum of another domain. Outlives the reduction.
    const DomainSums* domain_sums;
  };
  // Errors: kResourceExhausted (no scratch).
  static absl::StatusOr<std::unique_ptr<WindowedReduce>> Create(const OperationContext& context,
                                                                const Plan& plan);
  // Not copyable: tasks hold pointers to it.
  WindowedReduce(const WindowedReduce&) = delete;
  WindowedReduce& operator=(const WindowedReduce&) = delete;

  // Advances. Returns true if anything moved.
  absl::StatusOr<bool> Step(OperationContext& context);
  int64_t done() const { return progress_.done() / stage_count(); }  // Reduced slices.
  bool finished() const { return done() == slicing_.slices(); }
  // Adds the bootstrap ranks that the reduction waits for.
  void AddAwaited(std::set<int>& ranks) const;

 private:
  struct Stage final : TaskOwner {
    Stage(WindowedReduce& of, ReduceStream evaluated, const ReductionStage& stage)
        : reduce(of),
          number(of.stage_count()),
          stream(std::move(evaluated)),
          first_remote(stage.first_remote),
          end_remote(stage.end_remote),
          saves_to(stage.saves_to) {}
    void OnTaskDone(int64_t slice) override {
      reduce.progress_.Finish(slice * reduce.stage_count() + number);
    }

    WindowedReduce& reduce;
    int64_t number;
    ReduceStream stream;
    int64_t first_remote, end_remote;  // As in ReductionStage.
    int saves_to;
  };

  WindowedReduce(Slicing slicing, int64_t remote_count, const DomainSums* domain_sums)
      : slicing_(slicing), remote_count_(remote_count), domain_sums_(domain_sums) {}
  absl::Status Allocate(const OperationContext& context, const Plan& plan);
  int64_t stage_count() const { return static_cast<int64_t>(stages_.size()); }
  absl::StatusOr<bool> StepCredits(OperationContext& context);
  // Gives a credit to the sender that is next. `needed`: the first position that is still needed.
  absl::StatusOr<bool> CreditNext(OperationContext& context, int64_t needed);
  bool StepStages(OperationContext& context);
  bool HasArrived(const Stage& stage, int64_t slice);
  // Slices that the next task reduces, from `slice` on, which has arrived.
  int64_t NextSlices(const OperationContext& context, const Stage& stage, int64_t slice) const;
  // The slots of the next partial sum in the window.
  SliceMemory SlotsOf(const OperationContext& context, DType dtype) const;
  SliceMemory SavedValue(int index) const;

  const Slicing slicing_;
  const int64_t remote_count_;  // Partial sums of each slice.
  const DomainSums* const domain_sums_;
  // Steps are the stages of all slices, in order. Positions are the partial sums of all slices, in order.
  std::deque<Stage> stages_;  // Deques: tasks and transfers hold pointers to the streams.
  std::deque<ReceiveStream> receives_;
  CreditPace pace_;               // Of these.
  PrefixCounter progress_;        // Steps.
  int64_t credited_ = 0;          // Positions, unless senders have rings.
  int64_t arrived_in_stage_ = 0;  // Partial sums of the next step, from its first, that have arrived.
  int64_t slots_ = 0;             // Of the window.
  int64_t ring_slices_ = 0;       // Slots of each sender. 0: senders share all slots.
  size_t slot_bytes_ = 0;
  DType saved_dtype_;
  size_t saved_bytes_ = 0;  // Of a saved value: one slice for each of two slices that are reduced at a time.
  Buffer window_;
  Buffer saved_;
  bool announced_empty_ = false;
};

class ReducePhase {
 public:
  struct Memory {
    std::vector<WholeMemory> inputs;  // By group rank. Null for remote ranks.
    std::byte* output;                // Target of this rank's part.
    std::vector<std::byte*> copies;   // Further targets of this rank's part on this node.
  };
  // Lifetime: `plan` must outlive the phase.
  // Errors: kResourceExhausted (no scratch for the partial sums of other nodes).
  static absl::StatusOr<std::unique_ptr<ReducePhase>> Create(OperationContext& context,
                                                             const CollectivePlan& plan,
                                                             int64_t slice_elements, const Memory& memory);
  // Not copyable: tasks hold pointers to the streams.
  ReducePhase(const ReducePhase&) = delete;
  ReducePhase& operator=(const ReducePhase&) = delete;

  // Advances. Returns true if anything moved.
  absl::StatusOr<bool> Step(OperationContext& context);
  int64_t done() const { return reduce_ ? reduce_->done() : 0; }    // Reduced slices of this rank's part.
  bool complete() const { return reduce_ && reduce_->finished(); }  // This rank's part is reduced.
  bool drained() const;  // The phase is complete, and all partial sums are sent.
  // Slices of `member`'s part in this rank's input, counted from the first, that no send reads any more.
  int64_t ReadSlices(int member) const;
  // Adds the bootstrap ranks that the phase waits for.
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const;

 private:
  ReducePhase(const OperationContext& context, const CollectivePlan& plan, int64_t slice_elements,
              Memory memory);
  absl::Status Plan(const OperationContext& context);
  absl::Status PlanOwnPart(const OperationContext& context);
  void PlanPartials(const OperationContext& context);
  // The partial sum of a subtree of this node, of several ranks, for the part of `target`.
  std::unique_ptr<SliceSource> MakePartial(const OperationContext& context, const NodeSubtree& subtree,
                                           int target, const ReduceTarget& slot) const;
  Slicing SlicingOf(int member) const {
    return {plan_.parts.counts[static_cast<size_t>(member)], slice_elements_};
  }
  // `member`'s part in the input of `owner`.
  SliceMemory PartOf(int owner, int member) const {
    return PartMemory(plan_.parts, memory_.inputs[static_cast<size_t>(owner)], member, SizeOf(plan_.dtype));
  }

  const CollectivePlan& plan_;
  const int64_t slice_elements_;
  const Memory memory_;
  std::unique_ptr<DomainSums> domain_sums_;  // Null if the node's ranks read inputs only.
  // The reduction of this rank's part. Null until the rings of domain sums are known.
  std::unique_ptr<WindowedReduce> reduce_;
  ScratchSlots slots_;  // Scratch for the partial sums that this rank sends.
  // By member: the stream that sends the member its part of this rank's input. Null if there is none.
  std::vector<const OutgoingStream*> own_sends_;
  Sends partials_;  // Partial sums for remote owners. The plain partial of a single rank is its input.
};

// Target of the reduction of a part to `output`. Sets the scale of an average, and non-temporal stores for
// results that are too large for the caches.
ReduceTarget TargetOf(const GroupPlacement& placement, const CollectivePlan& plan, std::byte* output);

// Dtype in which sums are accumulated: see RunReduce.
DType AccumulationDType(DType dtype);

// Dtype of partial sums between nodes. f32 for f16, so that they are not rounded. bf16 stays bf16, which
// halves the bytes on the wire.
DType PartialDType(DType dtype);

}  // namespace weft
