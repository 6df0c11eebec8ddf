// The state of a training run in a checkpoint: weights, the optimizer's state, and a dynamic loss scale.
#pragma once

#include <cstdint>

#include <absl/status/status.h>

#include "src/train/plan/run_plan.h"
#include "weft/optim/loss_scaler.h"
#include "weft/optim/sharded_optimizer.h"
#include "weft/sharding/fully_shard.h"
#include "weft/train/checkpoint.h"

namespace weft {

// The parts of a run that have a state. They must outlive it.
struct TrainingState {
  const RunPlan& plan;
  ShardedModel& model;
  ShardedOptimizer& optimizer;
  LossScaler* loss_scaler;  // Null if nothing is in f16.
};

// This rank's part of the state, to be saved; with adapters that of the adapters alone. With replicas that
// share the optimizer, all ranks together have each element once; otherwise each replica has all of them.
// Lifetime of the shards: the model's and the optimizer's; their values change in a step.
CheckpointState SavedState(const TrainingState& state, int64_t step);

// Loader of the weights of SavedState, and of those of `inputs` for a model that adapters keep frozen, whose
// weights are not saved.
ShardLoader LoadWeights(const Checkpoint& checkpoint, const RunPlan& plan, const ShardLoader& inputs);

// Replaces the optimizer's state and that of a dynamic loss scale by those of the checkpoint. LoadWeights
// loads the weights. Errors: those of the checkpoint's loader; kDataLoss (names what the checkpoint lacks).
absl::Status LoadTrainingState(const Checkpoint& checkpoint, const TrainingState& state);

}  // namespace weft
