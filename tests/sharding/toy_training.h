// Trains the toy network over the ranks of a bootstrap, and reports what came of it and what it cost.
#pragma once

#include <memory>
#include <vector>

#include "sharding/model/sharded_groups.h"
#include "tests/sharding/toy_model.h"
#include "weft/comm/comm_engine.h"
#include "weft/mesh/device_mesh.h"
#include "weft/sharding/byte_formulas.h"
#include "weft/sharding/fully_shard.h"
#include "weft/sharding/policy.h"

namespace weft::testing {

constexpr uint64_t kToySeed = 7;
constexpr float kToyLearningRate = 0.5F;
constexpr int64_t kToyRows = 12;  // Of a step, over all ranks and microbatches.

// One rank's engine.
struct RankEngine {
  std::unique_ptr<NodeHeap> heap;
  std::unique_ptr<CommEngine> engine;

  static absl::StatusOr<RankEngine> Make(Bootstrap& bootstrap, EngineOptions options = {});
};

absl::StatusOr<DeviceMesh> MakeToyMesh(int replicate, int shard, int context = 1);

struct ToyRun {
  int replicate = 1;
  int shard = 1;
  int context = 1;  // Ranks along it split batches here as those along `shard` do.
  ShardingPolicy policy = {};
  int steps = 3;
  int microbatches = 1;
  GradientSync sync = GradientSync::kLast;
  double clip = 0.05;
  std::vector<int64_t> sizes = {16, 15, 8, 3};
  bool checkpoint = false;  // Blocks recompute their activations.
  bool by_hand = false;     // Updates.

  int shard_group_size() const { return shard * context; }
  int ranks() const { return replicate * shard_group_size(); }
  std::string Describe() const;
};

struct ToyOutcome {
  std::vector<float> weights;  // All parameters whole, as forward would see them.
  std::vector<double> norms;   // By step.
  // Of the last step.
  StepCosts expected;
  EngineCounters engine;
  ShardingCounters sharding;
  size_t image_peak_bytes = 0;
  size_t gradient_peak_bytes = 0;
};

// One microbatch of a step: forward and backward over this rank's rows.
absl::Status ToyPass(ToyNet& net, int rank, int ranks, int step, int microbatch, int microbatches);
// A step of plain gradient descent on the rank's shards, by ShardedModel::UpdateShards or `by_hand`.
absl::Status ToyUpdate(ShardedModel& model, double clip, std::vector<double>* norms, bool by_hand = false);
// Of its groups, as CostsOfGroups wants them.
std::vector<FlatLayout> LayoutsOf(const ShardedModel& model);
// All parameters of the model, whole.
absl::StatusOr<std::vector<float>> ToyWeights(ShardedModel& model);

absl::StatusOr<ToyOutcome> TrainToy(Bootstrap& bootstrap, const ToyRun& run);
// The same on one rank that knows nothing of sharding; weights in the order of the model's parameters.
absl::StatusOr<ToyOutcome> TrainToyAlone(const ToyRun& run);

}  // namespace weft::testing
