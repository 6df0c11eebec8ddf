// Training of the toy network over the ranks of a bootstrap, with its results and costs.
#pragma once

#include <memory>
#include <vector>

#include "sharding/model/group_schedule.h"
#include "sharding/model/sharded_groups_parts.h"
#include "tests/sharding/support/toy_model.h"
#include "tests/support/rank_engine.h"
#include "weft/comm/comm_engine.h"
#include "weft/mesh/device_mesh.h"
#include "weft/sharding/byte_formulas.h"
#include "weft/sharding/fully_shard.h"
#include "weft/sharding/memory_bounds.h"
#include "weft/sharding/policy.h"

namespace weft::testing {

constexpr uint64_t kToySeed = 7;
constexpr float kToyLearningRate = 0.5F;
constexpr int64_t kToyRows = 12;  // Rows of a step, over all ranks and microbatches.

// Engine of one rank, with its heap.
// A rank with a small heap whose released memory is filled with NaN.
absl::StatusOr<RankEngine> MakeToyRank(Bootstrap& bootstrap, const EngineOptions& options = {});

absl::StatusOr<DeviceMesh> MakeToyMesh(int replicate, int shard, int context = 1);

inline ShardedGroupsParts PartsOf(const ShardedModel& model) {
  return ShardedGroupsParts(model.sharded_groups());
}

struct ToyRun {
  int replicate = 1;
  int shard = 1;
  int context = 1;  // The toy has no sequences: ranks of this axis split the batch too.
  ShardingPolicy policy = {};
  int steps = 3;
  int microbatches = 1;
  GradientSync sync = GradientSync::kLast;
  double clip = 0.05;
  std::vector<int64_t> sizes = {16, 15, 8, 3};
  bool checkpoint = false;        // Blocks recompute their activations.
  bool updates_directly = false;  // Through Shards(), not UpdateShards.
  bool updates_in_backward = false;
  int64_t slice_bytes = EngineOptions().slice_bytes;

  int shard_group_size() const { return shard * context; }
  int ranks() const { return replicate * shard_group_size(); }
  std::string Describe() const;
};

struct ToyOutcome {
  int rank = 0;
  std::vector<float> weights;  // All parameters, unsharded.
  std::vector<double> norms;   // Gradient norm of each step.
  // The rest is of the last step.
  StepCosts expected;  // By the formulas.
  EngineCounters engine;
  ShardingCounters sharding;
  int64_t total_copied_bytes = 0;  // By the engine, in all steps and for the weights.
  MemoryPeaks peaks;
  MemoryPeaks largest_peaks;  // By LargestPeaks, whose REQUIRES apply.
};

// The groups of a model in the form of LargestPeaks.
std::vector<GroupMembers> MembersOf(const ShardedModel& model);

// Runs one microbatch of a step: forward and backward over this rank's rows.
absl::Status ToyPass(ToyNet& net, int rank, int ranks, int step, int microbatch, int microbatches);
// Updates the rank's shards by gradient descent, in ShardedModel::UpdateShards or directly. `norms`: the
// gradient norm is appended to it; may be null.
absl::Status ToyUpdate(ShardedModel& model, double clip, std::vector<double>* norms,
                       bool updates_directly = false);
// The same without clipping, in the next backward, which follows the first call, and precedes the second.
absl::Status BeginToyUpdateInBackward(ShardedModel& model);
absl::Status FinishToyUpdateInBackward(ShardedModel& model, std::vector<double>* norms);
// Layouts of the model's groups, as CostsOfGroups expects them.
std::vector<FlatLayout> LayoutsOf(const ShardedModel& model);
// Unshards each group and returns all parameters.
absl::StatusOr<std::vector<float>> ToyWeights(ShardedModel& model);

// Trains as `run` says and returns the outcome of this rank.
absl::StatusOr<ToyOutcome> TrainToy(Bootstrap& bootstrap, const ToyRun& run);
// The same on one rank without sharding; weights in the order of the model's parameters.
absl::StatusOr<ToyOutcome> TrainToyOnOneRank(const ToyRun& run);

}  // namespace weft::testing
