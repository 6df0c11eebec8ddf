// All-gather: into private outputs, into one output that the ranks of a share domain share, or with delta
// encoding.
// Also the broadcast of a group on one node (an all-gather in which only the root has a part).
#include <memory>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/comm/collectives/operations.h"
#include "src/comm/phases/gather_phase.h"
#include "weft/core/status.h"

namespace weft {
namespace {

class AllGatherOperation final : public Collective {
 public:
  using Collective::Collective;

 protected:
  // The staged phase has neither shared outputs nor delta encoding.
  bool takes_rings() const override {
    return plan().kind == OpKind::kAllGather || plan().kind == OpKind::kBroadcast;
  }

  absl::Status BeginMove(OperationContext& context) override {
    if (!context.placement.spans_nodes()) staged_ = MakeStagedPhase(context);
    if (staged_) return absl::OkStatus();
    GatherPhase::Memory memory{plan().input, plan().output, plan().base, {}};
    for (int peer : context.placement.local_peers()) {
      memory.peers.push_back({peer, InputOf(context, peer), OutputOf(context, peer)});
    }
    if (plan().kind == OpKind::kAllGatherShared) WEFT_RETURN_IF_ERROR(CheckSharedOutputs(context));
    const auto kind =
        plan().kind == OpKind::kAllGatherShared ? GatherPhase::Kind::kShared : GatherPhase::Kind::kWhole;
    WEFT_ASSIGN_OR_RETURN(gather_, GatherPhase::Create(context, plan().parts, plan().dtype,
                                                       SliceElements(context, plan().dtype), memory, kind));
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (staged_) return staged_->Step(context);
    return gather_->Step(context, kAllSlices);
  }
  bool MoveComplete() const override { return staged_ ? staged_->complete() : gather_->complete(); }
  bool MoveDrained() const override { return staged_ ? staged_->complete() : gather_->drained(); }
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    if (staged_) return staged_->AddAwaited(context, ranks);
    gather_->AddAwaited(ranks);
  }

 private:
  // Ranks of a domain have one output, and those of different domains have different ones. With one domain on
  // the node, peers have compared the addresses already.
  absl::Status CheckSharedOutputs(const OperationContext& context) const {
    if (!context.placement.spans_domains() || plan().parts.total() == 0) return absl::OkStatus();
    for (const int peer : context.placement.local_peers()) {
      const bool is_same = OutputOf(context, peer) == plan().output;
      if (context.placement.IsInDomain(peer) && !is_same) return MismatchWith(context, peer);
      if (!context.placement.IsInDomain(peer) && is_same) {
        return absl::FailedPreconditionError(absl::StrCat(
            "rank ", context.placement.BootstrapRank(peer),
            " of another share domain gathers into the same block; give each share domain a block "
            "of its own (CommEngine::share_domains), or set the share domain to node"));
      }
    }
    return absl::OkStatus();
  }

  std::unique_ptr<StagedPhase> staged_;  // Else gather_.
  std::unique_ptr<GatherPhase> gather_;
};

}  // namespace

std::unique_ptr<Operation> MakeAllGather(const GroupPlacement& placement, CollectivePlan&& plan) {
  // A shared output lies in node memory already. Only ranks of other domains read a rank's input then.
  const bool is_shared = plan.kind == OpKind::kAllGatherShared;
  const bool pulled = !placement.local_peers().empty() && !is_shared;
  const bool crosses = is_shared && placement.domain_size() < placement.local_size();
  const Collective::Sharing sharing{.input = pulled || crosses, .output = pulled && placement.spans_nodes()};
  return std::make_unique<AllGatherOperation>(std::move(plan), sharing);
}

}  // namespace weft
