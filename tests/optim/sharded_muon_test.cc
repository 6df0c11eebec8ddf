// Muon over shards: the same bits on every mesh, the bytes of its exchange, and its errors.
#include "weft/optim/sharded_muon.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/optim/uneven_net.h"
#include "tests/support/rank_engine.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/nn/layer_norm.h"
#include "weft/sharding/fully_shard.h"
#include "weft/sharding/state_dict.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::kRows;
using ::weft::testing::kSizes;
using ::weft::testing::Pass;
using ::weft::testing::Sizes;
using ::weft::testing::StatusIs;
using ::weft::testing::UnevenNet;

constexpr MuonOptions kMuon = {.lr = 0.02, .weight_decay = 0.1};
constexpr AdamWOptions kAdamW = {.lr = 0.01};
constexpr int kSteps = 3;

// Two matrices, and two vectors that AdamW updates.
struct NormedNet : UnevenNet {
  NormedNet() : UnevenNet(kSizes[0]) { Add<LayerNorm>("norm", kSizes[0].out, 1e-5F); }
};

bool IsMatrix(const Parameter& parameter) { return parameter.shape.size() == 2; }

struct MuonRun {
  int replicate, shard;
  ShardingPolicy policy;
  int nodes = 1;
  bool begins_frozen = false;  // With a step that updates nothing.
};

struct Outcome {
  std::map<std::string, std::vector<float>> weights;
  int64_t moved_bytes = 0;  // Over all ranks and steps.
};

// Only rank 0 has rows, so that the sum of gradients has the same bits on any number of ranks.
absl::Status TrainRank(Bootstrap& bootstrap, const MuonRun& run, std::mutex& mutex, Outcome& outcome) {
  WEFT_ASSIGN_OR_RETURN(const testing::RankEngine rank,
                        testing::RankEngine::Make(bootstrap, {}, {.segment_bytes = 4 << 20}));
  WEFT_ASSIGN_OR_RETURN(
      const DeviceMesh mesh,
      DeviceMesh::Create({{"replicate", run.replicate}, {"shard", run.shard}}, bootstrap.size()));
  NormedNet net;
  WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.children(), mesh, *rank.engine, run.policy,
                                                     LoadInitialValues(/*seed=*/3)));
  WEFT_ASSIGN_OR_RETURN(const auto optimizer, ShardedMuon::Create(*model, IsMatrix, kMuon, kAdamW));
  if (run.begins_frozen) {
    WEFT_RETURN_IF_ERROR(Pass(net, kSizes[0], kSteps, 0, kRows).status());
    const std::vector<OptimizerGroupStep> frozen(2, {.frozen = true});
    WEFT_RETURN_IF_ERROR(optimizer->Step(*model, frozen));
    model->ZeroGradients();
  }
  for (int step = 0; step < kSteps; ++step) {
    WEFT_RETURN_IF_ERROR(Pass(net, kSizes[0], step, 0, bootstrap.rank() == 0 ? kRows : 0).status());
    WEFT_RETURN_IF_ERROR(optimizer->Step(*model, /*gradient_scale=*/0.5));
    model->ZeroGradients();
  }
  const auto gather = [&](const Parameter& parameter, absl::Span<const float> values) {
    const std::lock_guard lock(mutex);
    outcome.weights[parameter.name].assign(values.begin(), values.end());
    return absl::OkStatus();
  };
  WEFT_RETURN_IF_ERROR(GatherFullState(*model, model->Shards(), StateTarget::kRankZero, gather));
  const std::lock_guard lock(mutex);
  outcome.moved_bytes += rank.engine->counters().optimizer_bytes;
  return absl::OkStatus();
}

Outcome Train(const MuonRun& run) {
  Outcome outcome;
  std::mutex mutex;
  const int ranks = run.replicate * run.shard;
  EXPECT_OK(RunThreadRanks(NodeMap::RanksPerNode(ranks, ranks / run.nodes),
                           [&](Bootstrap& bootstrap) { return TrainRank(bootstrap, run, mutex, outcome); }));
  return outcome;
}

ShardingPolicy PolicyOf(FlatKind layout, NodeShared node_shared = NodeShared::kAuto) {
  ShardingPolicy policy;
  policy.layout = layout;
  policy.node_shared = node_shared;
  return policy;
}

// Cuts columns, so that a rank's part of a matrix has a run for each row.
ShardingPolicy CutColumns() {
  ShardingPolicy policy = PolicyOf(FlatKind::kPerParameter);
  policy.shard_dim = [](const Parameter& parameter) { return static_cast<int>(parameter.shape.size()) - 1; };
  return policy;
}

TEST(ShardedMuon, GivesTheSameBitsOnEveryMesh) {
  const Outcome one = Train({1, 1, {}});
  ASSERT_EQ(one.weights.size(), 4);
  EXPECT_EQ(one.moved_bytes, 0);
  const MuonRun runs[] = {{1, 2, PolicyOf(FlatKind::kContiguous)},
                          {2, 1, PolicyOf(FlatKind::kContiguous)},
                          {1, 4, PolicyOf(FlatKind::kContiguous, NodeShared::kOn)},
                          {1, 4, PolicyOf(FlatKind::kContiguous, NodeShared::kOff), 2},
                          {1, 4, PolicyOf(FlatKind::kRows)},
                          {1, 4, CutColumns(), 2},
                          {2, 2, PolicyOf(FlatKind::kRows), 2},
                          {2, 2, PolicyOf(FlatKind::kPerParameter)},
                          {1, 3, PolicyOf(FlatKind::kRows), 3}};
  for (const MuonRun& run : runs) {
    const Outcome outcome = Train(run);
    EXPECT_EQ(outcome.weights, one.weights) << run.replicate << "x" << run.shard << ", "
                                            << Name(run.policy.layout) << ", " << run.nodes << " nodes";
    // There and back, in each replica.
    const Sizes& sizes = kSizes[0];
    const int64_t momentum_bytes = 4 * sizes.hidden * (sizes.in + sizes.out);
    EXPECT_LE(outcome.moved_bytes * run.shard, kSteps * 2 * momentum_bytes * (run.shard - 1) * run.replicate);
    EXPECT_EQ(outcome.moved_bytes > 0, run.shard > 1);
  }
}

// Neither the weights nor the momentum, and the matrices are not exchanged.
TEST(ShardedMuon, ChangesNothingInAStepInWhichAllIsFrozen) {
  const Outcome expected = Train({1, 2, {}});
  const Outcome outcome = Train({1, 2, {}, /*nodes=*/1, /*begins_frozen=*/true});
  EXPECT_EQ(outcome.weights, expected.weights);
  EXPECT_EQ(outcome.moved_bytes, expected.moved_bytes);
}

TEST(ShardedMuon, RefusesWhatItCannotUpdate) {
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const testing::RankEngine rank,
                          testing::RankEngine::Make(bootstrap, {}, {.segment_bytes = 4 << 20}));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"replicate", 2}}, 2));
    NormedNet net;
    for (const bool over_replicas : {false, true}) {
      ShardingPolicy policy;
      policy.shard_optimizer_over_replicas = over_replicas;
      WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.children(), mesh, *rank.engine, policy,
                                                         LoadInitialValues(/*seed=*/3)));
      const auto all = [](const Parameter&) { return true; };
      EXPECT_THAT(ShardedMuon::Create(*model, all, kMuon, kAdamW),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(over_replicas ? "leave shard_optimizer_over_replicas off"
                                                   : "has the shape [8]")));
    }
    return absl::OkStatus();
  }));
}

// Other coefficients stand for a processor whose products have other bits.
absl::Status CreateWithOtherBitsOnTheLastRank(Bootstrap& bootstrap, int replicate) {
  WEFT_ASSIGN_OR_RETURN(const testing::RankEngine rank,
                        testing::RankEngine::Make(bootstrap, {}, {.segment_bytes = 4 << 20}));
  const int ranks = bootstrap.size();
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        DeviceMesh::Create({{"replicate", replicate}, {"shard", ranks / replicate}}, ranks));
  NormedNet net;
  WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.children(), mesh, *rank.engine, {},
                                                     LoadInitialValues(/*seed=*/3)));
  MuonOptions options = kMuon;
  if (bootstrap.rank() == ranks - 1) options.coefficients[2] += 1e-6;
  return ShardedMuon::Create(*model, IsMatrix, options, kAdamW).status();
}

TEST(ShardedMuon, RefusesReplicasThatWouldDriftApart) {
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    EXPECT_THAT(CreateWithOtherBitsOnTheLastRank(bootstrap, 2),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("on rank 0"), HasSubstr("on rank 3"), HasSubstr("drift apart"),
                               HasSubstr("ONEDNN_MAX_CPU_ISA"))));
    // One owner's bits reach all ranks.
    EXPECT_OK(CreateWithOtherBitsOnTheLastRank(bootstrap, 1));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace weft
