#include "src/train/loop/run_optimizer.h"

#include "weft/core/status.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/optim/sharded_muon.h"
#include "weft/optim/sharded_sgd.h"

namespace weft {
namespace {

template <typename Options>
std::vector<ParamGroupOf<Options>> WithOptions(const std::vector<OptimizerGroup>& groups,
                                               const Options& options) {
  std::vector<ParamGroupOf<Options>> result;
  for (const OptimizerGroup& group : groups) {
    result.push_back({group.matches, options});
    if (!group.decays) result.back().options.weight_decay = 0;
  }
  return result;
}

}  // namespace

absl::StatusOr<RunOptimizer> MakeOptimizer(const RunPlan& plan, ShardedModel& model) {
  const std::vector<OptimizerGroup> groups = OptimizerGroupsOf(plan);
  RunOptimizer optimizer;
  LrSchedule others = plan.learning_rate;
  if (plan.optimizer == OptimizerKind::kMuon) {
    optimizer.sets.push_back(kLlama);
    optimizer.learning_rates.push_back(plan.learning_rate);
    others.lr = plan.adamw.lr;
  }
  optimizer.sets.push_back(kLlama);
  for (const OptimizerGroup& group : groups) optimizer.sets.push_back(group.set);
  optimizer.learning_rates.resize(optimizer.sets.size(), others);
  switch (plan.optimizer) {
    case OptimizerKind::kAdamW:
      optimizer.rule =
          std::make_unique<ShardedAdamW>(model.Shards(), plan.adamw, WithOptions(groups, plan.adamw));
      break;
    case OptimizerKind::kSgd:
      optimizer.rule = std::make_unique<ShardedSgd>(model.Shards(), plan.sgd, WithOptions(groups, plan.sgd));
      break;
    case OptimizerKind::kMuon: {
      WEFT_ASSIGN_OR_RETURN(optimizer.rule, ShardedMuon::Create(model, IsHiddenMatrix, plan.muon, plan.adamw,
                                                                WithOptions(groups, plan.adamw)));
      break;
    }
  }
  return optimizer;
}

}  // namespace weft
