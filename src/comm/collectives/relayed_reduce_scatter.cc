// Reduce-scatter between nodes by recursive halving. The first member of each node, its leader, acts for it,
// and writes the parts of the node to the outputs of their ranks. See Note [Relayed exchanges] and Note
// [Halving].
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "src/comm/collectives/operations.h"
#include "src/comm/phases/relay_phases.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kChannel = 0;

class RelayedReduceScatter final : public Collective {
 public:
  RelayedReduceScatter(const GroupPlacement& placement, CollectivePlan&& plan, bool mirrored)
      : Collective(std::move(plan), SharingOf(placement)), mirrored_(mirrored) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    if (!LeadsNode(placement)) return absl::OkStatus();
    const int64_t slice = SliceElements(context, plan().dtype);
    const std::vector<int>& members = placement.MembersOf(placement.NodeOf(placement.me()));
    int64_t own = 0;
    for (const int member : members) own += BytesOf(member);
    if (own > 0) {
      WEFT_ASSIGN_OR_RETURN(result_, context.scratch.Acquire(static_cast<size_t>(own)));
    }
    HalvingPhase::Memory memory{{}, result_.data()};
    std::byte* source = result_.data();
    for (const int member : members) {
      memory.inputs.push_back(InputOf(context, member));
      if (BytesOf(member) == 0) continue;
      // The peer published its output for this rank to write to.
      auto* output = const_cast<std::byte*>(OutputOf(context, member));
      const size_t element_bytes = SizeOf(plan().dtype);
      outputs_.emplace_back(Slicing{CountOf(member), slice}, plan().dtype, SliceMemory{source, element_bytes},
                            SliceMemory{output, element_bytes}, /*nontemporal=*/false);
      source += BytesOf(member);
    }
    WEFT_ASSIGN_OR_RETURN(
        halving_, HalvingPhase::Create(context, plan(), slice, std::move(memory), kChannel, mirrored_));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (!LeadsNode(context.placement)) {
      if (has_result_ || !HasLeaderAnnounced(context)) return false;
      return has_result_ = true;
    }
    WEFT_ASSIGN_OR_RETURN(bool advanced, halving_->Step(context));
    if (has_result_ || !halving_->complete()) return advanced;
    has_result_ = true;
    for (CopyStream& output : outputs_) {
      advanced |= output.Step(context, kAllSlices);
      has_result_ &= output.finished();
    }
    if (has_result_) AnnounceResultToNode(context);
    return advanced || has_result_;
  }
  bool MoveComplete() const override { return has_result_; }
  bool MoveDrained() const override { return has_result_ && (halving_ == nullptr || halving_->drained()); }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    if (halving_ != nullptr) return halving_->AddAwaited(ranks);
    if (!has_result_) ranks.insert(context.placement.BootstrapRank(context.placement.node_leader()));
  }

 private:
  // The leader reads the inputs of its node, and writes the outputs.
  static Sharing SharingOf(const GroupPlacement& placement) {
    return {.input = !LeadsNode(placement), .output = !LeadsNode(placement)};
  }
  int64_t CountOf(int member) const { return plan().parts.counts[static_cast<size_t>(member)]; }
  int64_t BytesOf(int member) const { return weft::BytesOf(CountOf(member), plan().dtype); }

  const bool mirrored_;
  // At the leader.
  Buffer result_;  // The parts of the node.
  std::unique_ptr<HalvingPhase> halving_;
  std::deque<CopyStream> outputs_;  // A deque: tasks hold pointers to the streams.

  bool has_result_ = false;
};

}  // namespace

std::unique_ptr<Operation> MakeRelayedReduceScatter(const GroupPlacement& placement, CollectivePlan&& plan,
                                                    bool mirrored) {
  return std::make_unique<RelayedReduceScatter>(placement, std::move(plan), mirrored);
}

}  // namespace weft
