// All-reduce over several nodes. Every rank reduces its part of the buffer, writes the result to all outputs
// of its node in the same pass, and sends it to the other nodes slice by slice.
//
// In place is safe: a part of the input is read only to reduce it, and is overwritten only after its
// reduction. If a rank sends its input to another node unreduced, it posts no receive for the sum of that
// part before the send is complete: MPI forbids that two messages in flight share memory.
#include <memory>
#include <set>
#include <utility>

#include "src/comm/collectives/operations.h"
#include "src/comm/phases/gather_phase.h"
#include "src/comm/phases/reduce_phase.h"
#include "weft/core/status.h"

namespace weft {
namespace {

class AllReduceOperation final : public Collective {
 public:
  AllReduceOperation(const GroupPlacement& placement, CollectivePlan&& plan)
      : Collective(std::move(plan),
                   {.input = !placement.local_peers().empty(), .output = !placement.local_peers().empty()}) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const int64_t slice = SliceElements(context, plan().dtype);
    std::byte* own_part = PartOf(plan().output, context.placement.me());
    ReducePhase::Memory reduced{LocalInputs(context), own_part, {}};
    GatherPhase::Memory memory{own_part, plan().output, /*delta_base=*/nullptr, {}};
    for (int peer : context.placement.local_peers()) {
      // The peer published its output for this rank to write to.
      auto* output = const_cast<std::byte*>(OutputOf(context, peer));
      reduced.copies.push_back(PartOf(output, context.placement.me()));
      memory.peers.push_back({peer, PartOf(output, peer), output});
    }
    WEFT_ASSIGN_OR_RETURN(reduce_, ReducePhase::Create(context, plan(), slice, reduced));
    WEFT_ASSIGN_OR_RETURN(gather_, GatherPhase::Create(context, plan().parts, plan().dtype, slice, memory,
                                                       GatherPhase::Kind::kPushed));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    WEFT_ASSIGN_OR_RETURN(const bool reduced, reduce_->Step(context));
    const bool announced = Announce(context);
    const bool in_place = plan().input == plan().output;
    const auto writable = [&](int member) {
      return in_place ? reduce_->ReadSlices(member) : GatherPhase::AllWritable(member);
    };
    WEFT_ASSIGN_OR_RETURN(const bool gathered, gather_->Step(context, reduce_->done(), writable));
    return reduced || announced || gathered;
  }
  bool MoveComplete() const override { return reduce_->complete() && gather_->complete(); }
  bool MoveDrained() const override { return reduce_->drained() && gather_->drained(); }
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    reduce_->AddAwaited(context, ranks);
    gather_->AddAwaited(ranks);
  }

 private:
  std::byte* PartOf(std::byte* output, int member) const {
    return output + BytesOf(plan().parts.offsets[static_cast<size_t>(member)], plan().dtype);
  }

  // Tells the local peers once that this rank's part is in their outputs.
  bool Announce(OperationContext& context) {
    if (announced_ || !reduce_->complete() || context.placement.local_peers().empty()) return false;
    announced_ = true;
    context.AnnounceToLocalPeers(context.placement.me(), reduce_->done());
    return true;
  }

  std::unique_ptr<ReducePhase> reduce_;
  std::unique_ptr<GatherPhase> gather_;
  bool announced_ = false;
};

}  // namespace

std::unique_ptr<Operation> MakeAllReduce(const GroupPlacement& placement, CollectivePlan&& plan) {
  return std::make_unique<AllReduceOperation>(placement, std::move(plan));
}

}  // namespace weft
