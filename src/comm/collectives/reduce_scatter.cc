// Reduce-scatter over several nodes: every part is reduced by its owner, in the order of the canonical tree.
#include <memory>
#include <set>
#include <utility>

#include "src/comm/collectives/operations.h"
#include "src/comm/phases/reduce_phase.h"
#include "weft/core/status.h"

namespace weft {
namespace {

class ReduceScatterOperation final : public Collective {
 public:
  ReduceScatterOperation(const GroupPlacement& placement, CollectivePlan&& plan)
      : Collective(std::move(plan), {.input = !placement.local_peers().empty(), .output = false}) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    ReducePhase::Memory memory{LocalInputs(context), plan().output, {}};
    WEFT_ASSIGN_OR_RETURN(reduce_,
                          ReducePhase::Create(context, plan(), SliceElements(context, plan().dtype), memory));
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Move(OperationContext& context) override { return reduce_->Step(context); }
  bool MoveComplete() const override { return reduce_->complete(); }
  bool MoveDrained() const override { return reduce_->drained(); }
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    reduce_->AddAwaited(context, ranks);
  }

 private:
  std::unique_ptr<ReducePhase> reduce_;
};

}  // namespace

std::unique_ptr<Operation> MakeReduceScatter(const GroupPlacement& placement, CollectivePlan&& plan) {
  return std::make_unique<ReduceScatterOperation>(placement, std::move(plan));
}

}  // namespace weft
