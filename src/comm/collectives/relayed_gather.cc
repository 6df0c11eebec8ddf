// All-gather between nodes that the first member of each node, its leader, relays in rounds. See Note
// [Relayed exchanges].
//
// The leader copies the parts of its node to the memory of the rounds. In the end it has all parts in its
// output, from which the other ranks of the node copy them.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "src/comm/collectives/operations.h"
#include "src/comm/phases/reduce_phase.h"
#include "src/comm/phases/relay_phases.h"
#include "src/comm/trees/relay_choice.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kChannel = 0;

class RelayedGather final : public Collective {
 public:
  RelayedGather(const GroupPlacement& placement, CollectivePlan&& plan, bool mirrored)
      : Collective(std::move(plan), SharingThroughHost(placement)), mirrored_(mirrored) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    const int64_t slice = SliceElements(context, plan().dtype);
    if (!LeadsNode(placement)) {
      copy_.emplace(context, plan(), slice, OutputOf(context, placement.node_leader()));
      return absl::OkStatus();
    }
    WEFT_ASSIGN_OR_RETURN(gather_, RelayedGatherPhase::Create(context, plan(), slice, kChannel, mirrored_));
    std::byte* target = gather_->own_parts();
    for (const int member : placement.MembersOf(placement.NodeOf(placement.me()))) {
      const int64_t count = plan().parts.counts[static_cast<size_t>(member)];
      const auto bytes = BytesOf(count, plan().dtype);
      packed_.push_back(RelayedCopy(context, plan(), slice, InputOf(context, member), target, count));
      context.counters.copied_bytes += bytes;
      target += bytes;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (copy_) return copy_->Step(context);
    bool advanced = false;
    for (CopyStream& copy : packed_) advanced |= copy.Step(context, kAllSlices);
    const bool is_packed =
        std::all_of(packed_.begin(), packed_.end(), [](const CopyStream& copy) { return copy.finished(); });
    WEFT_ASSIGN_OR_RETURN(const bool moved, gather_->Step(context, is_packed));
    return advanced || moved;
  }
  bool MoveComplete() const override { return copy_ ? copy_->complete() : gather_->complete(); }
  bool MoveDrained() const override { return copy_ ? copy_->complete() : gather_->drained(); }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    if (copy_) return copy_->AddAwaited(context, ranks);
    gather_->AddAwaited(ranks);
  }

 private:
  const bool mirrored_;
  // At the leader.
  std::deque<CopyStream> packed_;  // A deque: tasks hold pointers to the streams.
  std::unique_ptr<RelayedGatherPhase> gather_;
  // At other ranks.
  std::optional<CopyOfLeader> copy_;
};

}  // namespace

bool IsRelayed(const GroupPlacement& placement, const CollectivePlan& plan, int64_t elements,
               Relaying relaying) {
  if (relaying == Relaying::kNever || !placement.spans_nodes() || placement.spans_domains() ||
      !placement.nodes_are_consecutive() || elements == 0 || plan.parts.ranges != nullptr) {
    return false;
  }
  const int nodes = placement.node_count();
  const int64_t bytes = BytesOf(elements, plan.dtype);
  if (bytes > kMaxRelayedBytes) return false;
  if (plan.kind == OpKind::kReduceScatter) {
    if (!placement.nodes_are_subtrees() || AccumulationDType(plan.dtype) != plan.dtype) return false;
    return relaying == Relaying::kAlways ||
           RelayedReduceScatterPays(nodes, static_cast<int>(placement.MembersOf(0).size()), bytes);
  }
  // Without other ranks on the nodes, a shared output is that of one rank.
  const bool is_private =
      plan.kind == OpKind::kAllGather || (plan.kind == OpKind::kAllGatherShared && placement.size() == nodes);
  return is_private && (relaying == Relaying::kAlways || RelayedGatherPays(nodes, bytes));
}

std::unique_ptr<Operation> MakeRelayedGather(const GroupPlacement& placement, CollectivePlan&& plan,
                                             bool mirrored) {
  return std::make_unique<RelayedGather>(placement, std::move(plan), mirrored);
}

}  // namespace weft
