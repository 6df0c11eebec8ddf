// Sharded training on simulated ranks: the same hooks, context and engine as on real ranks, with delayed
// flags, delayed reads, poisoned memory and slow ranks.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/sharding/support/expect_costs.h"
#include "tests/sharding/support/toy_training.h"
#include "tests/support/schedule_count.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/hash.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

uint64_t HashOf(const std::vector<float>& weights) {
  return Hash64(weights.data(), weights.size() * sizeof(float));
}

// A pseudorandom number below `end`, by seed and purpose.
uint64_t Draw(uint64_t seed, uint64_t purpose, uint64_t end) { return HashCombine(seed, purpose) % end; }

// A random run on 4 ranks.
ToyRun DrawRun(uint64_t seed) {
  ToyRun run;
  run.microbatches = Draw(seed, 9, 2) == 0 ? 1 : 3;
  run.sync = static_cast<GradientSync>(Draw(seed, 15, 3));
  run.shard = 1 << Draw(seed, 1, 3);
  run.replicate = 4 / run.shard;
  run.steps = 2;
  run.checkpoint = Draw(seed, 2, 2) == 0;
  run.policy.layout = kFlatKinds[Draw(seed, 3, 3)];
  run.policy.shard_optimizer_over_replicas = run.replicate > 1 && Draw(seed, 16, 2) == 0;
  run.policy.reshard_after_forward = Draw(seed, 4, 2) == 0;
  run.policy.reshard_root_after_forward = Draw(seed, 5, 2) == 0;
  run.policy.prefetch_depth = static_cast<int>(Draw(seed, 6, ShardingPolicy::kMaxPrefetchDepth + 1));
  run.policy.max_reduce_scatters = static_cast<int>(Draw(seed, 7, 4));
  run.policy.max_all_reduces = static_cast<int>(1 + Draw(seed, 8, 3));
  run.policy.wire_compression = Draw(seed, 17, 2) == 0 ? WireCompression::kLossless : WireCompression::kNone;
  run.policy.node_shared = Draw(seed, 16, 3) == 0 ? NodeShared::kOff : NodeShared::kAuto;
  return run;
}

// Name of the class of runs that give the same bits. If several microbatches are reduced one by one, the mesh
// determines the order of additions. Otherwise it does not.
std::string ResultClass(const ToyRun& run) {
  if (run.microbatches == 1) return "one microbatch";
  if (run.sync == GradientSync::kLast) return "reduced once";
  return absl::StrCat(ToAbsl(Name(run.sync)), " on ", run.replicate, " x ", run.shard);
}

SimOptions DrawMachine(uint64_t seed) {
  SimOptions machine;
  machine.seed = seed;
  machine.jitter = static_cast<double>(1 + Draw(seed, 10, 20));
  machine.poll_ns = 4'000;
  machine.wire_speed = Draw(seed, 11, 2) == 0 ? 0.02 : 1.25;
  machine.memory_speed = Draw(seed, 12, 2) == 0 ? 0.1 : 8.0;
  if (Draw(seed, 13, 2) == 0) machine.slow = {{static_cast<int>(Draw(seed, 14, 4)), 20.0}};
  return machine;
}

TEST(SimulatedTraining, GivesTheSameBitsUnderEverySchedule) {
  const uint64_t seeds = ScheduleCount(1000);
  // First seed with these weights: by class, then by hash of the weights.
  std::map<std::string, std::map<uint64_t, uint64_t>> first_seeds;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const ToyRun run = DrawRun(seed);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", run.Describe()));
    const NodeMap nodes = NodeMap::RanksPerNode(4, 1 << Draw(seed, 20, 3));
    auto& first_seed_of = first_seeds[ResultClass(run)];
    const SimReport report =
        RunSimulatedRanks(nodes, DrawMachine(seed), [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(const ToyOutcome outcome, TrainToy(bootstrap, run));
          first_seed_of.try_emplace(HashOf(outcome.weights), seed);
          return absl::OkStatus();
        });
    ASSERT_OK(report.status());
    ASSERT_EQ(first_seed_of.size(), 1)
        << "the weights differ from those of seed " << first_seed_of.begin()->second;
  }
  // Threads give the same weights.
  const ToyRun run = DrawRun(0);
  RunRanks(NodeMap::OneNode(4), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const ToyOutcome outcome, TrainToy(bootstrap, run));
    EXPECT_EQ(HashOf(outcome.weights), first_seeds[ResultClass(run)].begin()->first);
    return absl::OkStatus();
  });
}

TEST(SimulatedTraining, StaysWithinTheBoundsOfMemory) {
  const uint64_t seeds = ScheduleCount(300);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    ToyRun run = DrawRun(seed);
    run.sizes = {64, 128, 96, 64, 64, 32};
    run.policy.wire_compression = WireCompression::kNone;
    if (Draw(seed, 30, 3) == 0) run.policy.param_dtype = DType::kBF16;
    if (Draw(seed, 31, 3) == 0) run.policy.reduce_dtype = DType::kBF16;
    run.updates_in_backward = run.sync == GradientSync::kLast && Draw(seed, 32, 2) == 0;
    if (run.updates_in_backward) run.policy.unused_gradients = UnusedGradients::kZero;
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", run.Describe()));
    const NodeMap nodes = NodeMap::RanksPerNode(4, 1 << Draw(seed, 20, 3));
    const SimReport report =
        RunSimulatedRanks(nodes, DrawMachine(seed), [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(const ToyOutcome outcome, TrainToy(bootstrap, run));
          ExpectPeaksWithinBounds(outcome);
          return absl::OkStatus();
        });
    ASSERT_OK(report.status());
  }
}

// Runs a step on 1,024 ranks, 16 x 64, with one row on each rank.
TEST(SimulatedTraining, RunsOnAThousandRanks) {
  constexpr int kShard = 64;
  const int replicate = LargeWorld() / kShard;
  constexpr int kRanksPerNode = 8;
  std::map<uint64_t, int> ranks_by_weights;
  SimOptions machine;
  machine.poll_ns = 20'000;
  const auto body = [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine rank, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(replicate, kShard));
    ToyNet net({16, 15, 8, 3});
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<ShardedModel> model,
                          FullyShard(net, net.blocks(), mesh, *rank.engine, {}, LoadInitialValues(kToySeed)));
    Invocation invocation;
    const Tensor inputs = ToyInputs(bootstrap.rank(), 1, net.parameters()[0]->elements());
    WEFT_ASSIGN_OR_RETURN(const Tensors outputs, net.Forward(invocation, {inputs}));
    const Tensor gradient = ToyLossGradient(outputs[0], 1.0F / static_cast<float>(bootstrap.size()));
    WEFT_RETURN_IF_ERROR(net.Backward(invocation, {gradient}).status());
    WEFT_RETURN_IF_ERROR(ToyUpdate(*model, 1.0, nullptr));
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(*model));
    ++ranks_by_weights[HashOf(weights)];
    return absl::OkStatus();
  };
  ASSERT_OK(
      RunSimulatedRanks(NodeMap::RanksPerNode(replicate * kShard, kRanksPerNode), machine, body).status());
  ASSERT_EQ(ranks_by_weights.size(), 1);
  EXPECT_EQ(ranks_by_weights.begin()->second, replicate * kShard);
}

// Times of an operation in the flight recorder.
struct Span {
  int64_t started_ns;
  int64_t ready_ns;
  bool Overlaps(const Span& other) const {
    return started_ns < other.ready_ns && other.started_ns < ready_ns;
  }
};

TEST(SimulatedTraining, OverlapsAllReducesWithTheNextReduceScatter) {
  // Shard groups span nodes and replicate groups do not: a reduce-scatter takes longer than an all-reduce.
  const NodeMap nodes{{0, 1, 0, 1}};
  SimOptions machine;
  machine.seed = 4;
  machine.wire_speed = 0.005;
  std::map<std::string, std::map<std::string, Span>> spans;  // Operations of rank 0, by kind and label.
  const auto body = [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine rank, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
    ToyNet net({16, 16, 16, 16});
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<ShardedModel> model,
                          FullyShard(net, net.blocks(), mesh, *rank.engine, {}, LoadInitialValues(kToySeed)));
    WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), 0, 0, 1));
    if (bootstrap.rank() != 0) return absl::OkStatus();
    const auto record = nlohmann::json::parse(rank.engine->RecorderJson());
    for (const auto& operation : record["operations"]) {
      spans[operation["kind"]][operation["label"]] = {operation["started_ns"], operation["ready_ns"]};
    }
    return absl::OkStatus();
  };
  ASSERT_OK(RunSimulatedRanks(nodes, machine, body).status());
  for (const auto& [group, next] : std::map<std::string, std::string>{
           {"layers.2", "layers.1"}, {"layers.1", "layers.0"}, {"layers.0", "net"}}) {
    ASSERT_TRUE(spans["all_reduce"].contains(group));
    ASSERT_TRUE(spans["reduce_scatter"].contains(next));
    EXPECT_TRUE(spans["all_reduce"][group].Overlaps(spans["reduce_scatter"][next]))
        << "all-reduce of " << group << " and reduce-scatter of " << next;
  }
}

}  // namespace
}  // namespace weft::testing
