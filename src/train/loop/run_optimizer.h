// Optimizer of a run: the update rule of --optimizer over the shards of its model.
#pragma once

#include <memory>
#include <vector>

#include <absl/status/statusor.h>

#include "src/train/plan/parameter_sets.h"
#include "src/train/plan/run_plan.h"
#include "weft/optim/sharded_optimizer.h"
#include "weft/sharding/fully_shard.h"

namespace weft {

struct RunOptimizer {
  std::unique_ptr<ShardedOptimizer> rule;
  // By parameter group of the rule: the set that its parameters belong to, and their learning rates.
  std::vector<ParameterSet> sets;
  std::vector<LrSchedule> learning_rates;
};

// Lifetime: the model must outlive the optimizer. Collective: all ranks.
// Errors: those of ShardedMuon::Create.
absl::StatusOr<RunOptimizer> MakeOptimizer(const RunPlan& plan, ShardedModel& model);

}  // namespace weft
