// All-reduce between nodes that their first members, the leaders, relay: a reduce-scatter over the nodes by
// recursive halving, then a gather in rounds. See Note [Relayed exchanges].
//
// In place is safe: a leader reads the inputs of its node once, to add them up, and all messages come from
// scratch memory. It writes its output when it has all parts, and the other ranks of its node write theirs
// after that.
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/comm/collectives/operations.h"
#include "src/comm/phases/reduce_phase.h"
#include "src/comm/phases/relay_phases.h"
#include "src/comm/trees/relay_choice.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kGatherChannel = 0;
constexpr int kHalvingChannel = 1;

class RelayedAllReduce final : public Collective {
 public:
  RelayedAllReduce(const GroupPlacement& placement, CollectivePlan&& plan, bool mirrored)
      : Collective(std::move(plan), SharingThroughHost(placement)), mirrored_(mirrored) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    const int64_t slice = SliceElements(context, plan().dtype);
    if (!LeadsNode(placement)) {
      copy_.emplace(context, plan(), slice, OutputOf(context, placement.node_leader()));
      return absl::OkStatus();
    }
    WEFT_ASSIGN_OR_RETURN(gather_,
                          RelayedGatherPhase::Create(context, plan(), slice, kGatherChannel, mirrored_));
    HalvingPhase::Memory memory{{}, gather_->own_parts()};
    for (const int member : placement.MembersOf(placement.NodeOf(placement.me())))
      memory.inputs.push_back(InputOf(context, member));
    WEFT_ASSIGN_OR_RETURN(halving_, HalvingPhase::Create(context, plan(), slice, std::move(memory),
                                                         kHalvingChannel, mirrored_));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (copy_) return copy_->Step(context);
    WEFT_ASSIGN_OR_RETURN(const bool halved, halving_->Step(context));
    // Credits go in the order of the rounds.
    if (!halving_->is_credited()) return halved;
    const bool may_gather = halving_->complete() || !context.wire.rules().rounds_await_earlier_ones;
    WEFT_ASSIGN_OR_RETURN(const bool gathered, gather_->Step(context, may_gather));
    return halved || gathered;
  }
  bool MoveComplete() const override { return copy_ ? copy_->complete() : gather_->complete(); }
  bool MoveDrained() const override {
    return copy_ ? copy_->complete() : halving_->drained() && gather_->drained();
  }

  // The next phase waits for other ranks only once the first one is complete.
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    if (copy_) return copy_->AddAwaited(context, ranks);
    if (!halving_->complete()) return halving_->AddAwaited(ranks);
    gather_->AddAwaited(ranks);
    if (ranks.empty()) halving_->AddAwaited(ranks);
  }

 private:
  const bool mirrored_;
  // At the leader.
  std::unique_ptr<RelayedGatherPhase> gather_;
  std::unique_ptr<HalvingPhase> halving_;
  // At other ranks.
  std::optional<CopyOfLeader> copy_;
};

}  // namespace

AllReduceForm FormOfAllReduce(const GroupPlacement& placement, DType dtype, int64_t count,
                              Relaying relaying) {
  if (TakesTree(placement, dtype, count, relaying)) return AllReduceForm::kTree;
  const int64_t bytes = BytesOf(count, dtype);
  const bool may_relay = relaying != Relaying::kNever && placement.spans_nodes() &&
                         !placement.spans_domains() && placement.nodes_are_subtrees() &&
                         AccumulationDType(dtype) == dtype && bytes <= kMaxRelayedBytes;
  if (!may_relay) return AllReduceForm::kDirect;
  const auto members = static_cast<int>(placement.MembersOf(0).size());
  const bool relays =
      relaying == Relaying::kAlways || RelayedAllReducePays(placement.node_count(), members, bytes);
  return relays ? AllReduceForm::kRelayed : AllReduceForm::kDirect;
}

std::vector<int64_t> RelayedAllReduceCounts(const GroupPlacement& placement, DType dtype, int64_t count) {
  const int64_t bytes = BytesOf(count, dtype);
  const int owners = OwnersOfAllReduce(placement.node_count(), bytes);
  const std::vector<int64_t> of_owners = AllReduceCounts(count, owners, dtype);
  std::vector<int64_t> counts(static_cast<size_t>(placement.size()));
  for (int node = 0; node < owners; ++node) {
    counts[static_cast<size_t>(placement.NodeLeader(node))] = of_owners[static_cast<size_t>(node)];
  }
  return counts;
}

std::unique_ptr<Operation> MakeRelayedAllReduce(const GroupPlacement& placement, CollectivePlan&& plan,
                                                bool mirrored) {
  return std::make_unique<RelayedAllReduce>(placement, std::move(plan), mirrored);
}

}  // namespace weft
