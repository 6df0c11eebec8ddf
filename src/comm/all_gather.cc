// All-gather, broadcast (an all-gather of which only the root has a part) and barrier (an all-gather of one
// word each).
#include <utility>

#include "src/comm/gather_phase.h"
#include "src/comm/operations.h"

namespace weft {
namespace {

class AllGatherOperation final : public Collective {
 public:
  AllGatherOperation(const GroupPlacement& placement, CollectivePlan plan)
      : Collective(std::move(plan), {.input = !placement.local_peers().empty(),
                                     .output = !placement.local_peers().empty() && placement.spans_nodes()}) {
  }

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    GatherPhase::Memory memory{plan().input, plan().output, {}};
    for (int peer : context.placement.local_peers()) {
      memory.peers.push_back({peer, InputOf(context, peer), OutputOf(context, peer)});
    }
    gather_.emplace(context, plan().parts, plan().dtype, SliceElements(context, plan().dtype),
                    std::move(memory),
                    /*parts_grow=*/false);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Move(OperationContext& context) override {
    return gather_->Step(context, std::numeric_limits<int64_t>::max());
  }
  bool MoveComplete() const override { return gather_->complete(); }
  bool MoveDrained() const override { return gather_->drained(); }
  void AddAwaited(std::set<int>& ranks) const override { gather_->AddAwaited(ranks); }

 private:
  std::optional<GatherPhase> gather_;
};

}  // namespace

std::unique_ptr<Operation> MakeAllGather(const GroupPlacement& placement, CollectivePlan plan) {
  return std::make_unique<AllGatherOperation>(placement, std::move(plan));
}

}  // namespace weft
