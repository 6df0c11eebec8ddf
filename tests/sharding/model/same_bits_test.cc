// Bits and costs of sharded training on meshes, schedules and node maps.
#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/expect_costs.h"
#include "tests/sharding/support/toy_training.h"
#include "tests/support/schedule_count.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/hash.h"

namespace weft::testing {
namespace {

// Trains and calls `check(outcome)` on every rank.
template <typename Check>
void RunToy(const NodeMap& nodes, const ToyRun& run, Check check) {
  SCOPED_TRACE(run.Describe());
  std::mutex mutex;
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const ToyOutcome outcome, TrainToy(bootstrap, run));
    const std::lock_guard lock(mutex);
    check(outcome);
    return absl::OkStatus();
  });
}

// Runs of every schedule on each of these (replicate, shard) meshes. If tests are limited, groups are
// gathered ahead least or most, and a third of the runs is left. It has each layout on each of three meshes.
std::vector<ToyRun> Schedules(const std::vector<std::pair<int, int>>& meshes) {
  constexpr int kMostAhead = ShardingPolicy::kMaxPrefetchDepth;
  std::vector<ToyRun> runs;
  for (int mesh = 0; const auto& [replicate, shard] : meshes) {
    ++mesh;
    for (int number = 0;
         const auto& [layout, node_shared] : {std::pair{FlatKind::kContiguous, NodeShared::kAuto},
                                              {FlatKind::kContiguous, NodeShared::kOff},
                                              {FlatKind::kRows, NodeShared::kAuto},
                                              {FlatKind::kRows, NodeShared::kOff},
                                              {FlatKind::kPerParameter, NodeShared::kAuto}}) {
      ++number;
      for (const bool reshard : {true, false}) {
        for (int depth = 0; depth <= kMostAhead; depth += ScheduleLimit() ? kMostAhead : 1) {
          if (!IsInSample(mesh, number, (reshard ? 2 : 0) + (depth > 0 ? 1 : 0))) continue;
          ToyRun run{.replicate = replicate, .shard = shard};
          run.policy.layout = layout;
          run.policy.node_shared = node_shared;
          run.policy.reshard_after_forward = reshard;
          run.policy.prefetch_depth = depth;
          runs.push_back(run);
        }
      }
    }
  }
  return runs;
}

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance) << "weight " << i;
}

TEST(FullyShard, TrainsLikeOneRankOnEveryMesh) {
  for (const auto& [replicate, shard] :
       {std::pair{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {2, 2}, {4, 1}, {1, 4}, {2, 3}}) {
    const ToyRun run{.replicate = replicate, .shard = shard};
    const ToyOutcome alone = *TrainToyOnOneRank(run);
    for (const NodeMap& nodes : NodeMapsOf(replicate * shard)) {
      RunToy(nodes, run, [&alone](const ToyOutcome& outcome) {
        ExpectNear(outcome.weights, alone.weights, 1e-5F);
        for (size_t step = 0; step < alone.norms.size(); ++step) {
          EXPECT_NEAR(outcome.norms[step], alone.norms[step], 1e-5 * alone.norms[step]);
        }
      });
    }
  }
}

TEST(FullyShard, GivesTheSameBitsOnEveryMeshAndScheduleOfFourRanks) {
  std::map<uint64_t, std::string> seen;
  for (ToyRun run : Schedules({{1, 4}, {2, 2}, {4, 1}})) {
    for (const bool updates_directly : {false, true}) {
      run.updates_directly = updates_directly;
      RunToy(NodeMap::RanksPerNode(4, 2), run, [&](const ToyOutcome& outcome) {
        const uint64_t norms = Hash64(outcome.norms.data(), outcome.norms.size() * sizeof(double));
        seen.emplace(Hash64(outcome.weights.data(), outcome.weights.size() * sizeof(float), norms),
                     run.Describe());
      });
    }
  }
  EXPECT_THAT(seen, ::testing::SizeIs(1));
}

TEST(UpdatesInBackward, GiveTheWeightsAndNormsOfUpdatesAfterIt) {
  for (const auto& [replicate, shard] : {std::pair{1, 1}, {1, 3}, {1, 4}, {2, 2}, {4, 1}}) {
    for (const FlatKind layout : kFlatKinds) {
      for (const GradientSync sync :
           {GradientSync::kLast, GradientSync::kReduceScatter, GradientSync::kEach}) {
        ToyRun run{.replicate = replicate, .shard = shard};
        run.clip = kNoClipping;
        run.policy.layout = layout;
        run.policy.unused_gradients = UnusedGradients::kZero;
        run.policy.shard_optimizer_over_replicas = replicate > 1 && sync == GradientSync::kLast;
        run.policy.param_dtype = sync == GradientSync::kEach ? DType::kBF16 : DType::kF32;
        run.sync = sync;
        run.microbatches = sync == GradientSync::kLast ? 1 : 2;
        if (kToyRows % (run.ranks() * run.microbatches) != 0) continue;
        const NodeMap nodes = NodeMap::RanksPerNode(run.ranks(), layout == FlatKind::kRows ? 2 : run.ranks());
        ToyOutcome expected;
        RunToy(nodes, run, [&](const ToyOutcome& outcome) { expected = outcome; });
        run.updates_in_backward = true;
        RunToy(nodes, run, [&](const ToyOutcome& outcome) {
          EXPECT_EQ(outcome.weights, expected.weights);
          EXPECT_EQ(outcome.norms, expected.norms);
        });
      }
    }
  }
}

TEST(FullyShard, TreatsShardAndContextAsOneAxis) {
  const auto train = [](const ToyRun& run, const std::function<void(const ToyOutcome&)>& check) {
    RunToy(NodeMap::RanksPerNode(4, 2), run, [&check](const ToyOutcome& outcome) {
      ExpectCosts(outcome);
      check(outcome);
    });
  };
  ToyOutcome flat;
  train({.shard = 4}, [&flat](const ToyOutcome& outcome) { flat = outcome; });
  for (const ToyRun& run :
       {ToyRun{.shard = 2, .context = 2}, {.context = 4}, {.replicate = 2, .context = 2}}) {
    train(run, [&](const ToyOutcome& outcome) {
      EXPECT_EQ(outcome.weights, flat.weights);
      EXPECT_EQ(outcome.norms, flat.norms);
      EXPECT_EQ(outcome.engine.all_reduce_bytes > 0, run.replicate > 1);
    });
  }
}

TEST(FullyShard, GivesTheSameBitsAtTheSameCostWithActivationCheckpoints) {
  std::map<uint64_t, std::string> seen;
  for (ToyRun run : Schedules({{2, 2}})) {
    for (const bool checkpoint : {false, true}) {
      run.checkpoint = checkpoint;
      RunToy(NodeMap::OneNode(4), run, [&](const ToyOutcome& outcome) {
        seen.emplace(Hash64(outcome.weights.data(), outcome.weights.size() * sizeof(float)), run.Describe());
        ExpectCosts(outcome);
      });
    }
  }
  EXPECT_THAT(seen, ::testing::SizeIs(1));
}

TEST(FullyShard, GivesTheSameBitsOnEveryNodeMap) {
  std::map<uint64_t, std::string> seen;
  for (const NodeMap& nodes : NodeMapsOf(4)) {
    for (const FlatKind layout : kFlatKinds) {
      for (const bool over_replicas : {false, true}) {
        ToyRun run{.replicate = 2, .shard = 2};
        run.policy.layout = layout;
        run.policy.shard_optimizer_over_replicas = over_replicas;
        run.policy.wire_compression = over_replicas ? WireCompression::kLossless : WireCompression::kNone;
        RunToy(nodes, run, [&](const ToyOutcome& outcome) {
          seen.emplace(Hash64(outcome.weights.data(), outcome.weights.size() * sizeof(float)),
                       Describe(nodes));
        });
      }
    }
  }
  EXPECT_THAT(seen, ::testing::SizeIs(1));
}

TEST(FullyShard, CostsWhatTheFormulasSay) {
  for (const ToyRun& run : Schedules({{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 3}})) {
    RunToy(NodeMap::OneNode(run.replicate * run.shard), run, ExpectCosts);
  }
}

TEST(FullyShard, CostsWhatTheFormulasSayWhenReshardedToNeighbors) {
  for (const auto& [shard, neighbors] : {std::pair{2, 2}, {4, 2}, {4, 4}, {6, 3}}) {
    for (const FlatKind layout : kFlatKinds) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        ToyRun run{.shard = shard};
        run.policy.layout = layout;
        run.policy.param_dtype = dtype;
        run.policy.reshard_after_forward_size = neighbors;
        RunToy(NodeMap::OneNode(shard), run, ExpectCosts);
      }
    }
  }
}

// Rows of the toy are shorter and longer than these slices. Replicas and neighbors exchange rows too.
TEST(FullyShard, PacksTheRowsThatTheFormulasSayBetweenNodes) {
  for (int mesh = 0; const auto& [replicate, shard, ranks_per_node] :
                     {std::tuple{1, 2, 1}, {1, 4, 1}, {1, 4, 2}, {2, 2, 2}, {2, 2, 1}, {4, 1, 1}}) {
    ++mesh;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int neighbors : {0, 2}) {
        if (!IsInSample(mesh, dtype == DType::kF32 ? 0 : 1, neighbors / 2)) continue;
        ToyRun run{.replicate = replicate, .shard = shard, .microbatches = 2, .slice_bytes = 96};
        run.policy.layout = FlatKind::kRows;
        run.policy.param_dtype = dtype;
        run.policy.shard_optimizer_over_replicas = replicate > 1;
        run.policy.reshard_after_forward_size = shard % 2 == 0 ? neighbors : 0;
        std::map<int, int64_t> packed;  // By rank, in two of the steps.
        int64_t expected = 0;
        for (const int steps : {2, 4}) {
          run.steps = steps;
          RunToy(
              NodeMap::RanksPerNode(replicate * shard, ranks_per_node), run, [&](const ToyOutcome& outcome) {
                packed[outcome.rank] += (steps == 4 ? 1 : -1) * outcome.total_copied_bytes;
                if (steps == 2) return;
                EXPECT_EQ(packed[outcome.rank], 2 * outcome.expected.packed_bytes) << "rank " << outcome.rank;
                expected += outcome.expected.packed_bytes;
              });
        }
        const bool shares_masters = dtype == DType::kF32 && run.policy.reshard_after_forward_size == 0;
        EXPECT_EQ(expected > 0, shard > 1 && (ranks_per_node < shard || shares_masters));
      }
    }
  }
}

TEST(FullyShard, CopiesNothingWithZeroCopyInFp32) {
  for (const auto& [replicate, shard] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
    for (const FlatKind layout : {FlatKind::kContiguous, FlatKind::kRows}) {
      ToyRun run{.replicate = replicate, .shard = shard};
      run.policy.layout = layout;
      RunToy(NodeMap::OneNode(replicate * shard), run, [](const ToyOutcome& outcome) {
        EXPECT_EQ(outcome.sharding.copied_bytes, 0);
        EXPECT_EQ(outcome.engine.copied_bytes, 0);
      });
    }
  }
}

TEST(FullyShard, GathersTheRootOnceAndBlocksTwiceUnlessTheyStayUnshardedForBackward) {
  const int64_t blocks = 3;
  const int64_t kept = 2;  // The first block of backward and one prefetched block stay unsharded.
  ToyRun run{.shard = 2};
  run.policy.node_shared = NodeShared::kOff;
  RunToy(NodeMap::OneNode(2), run, [](const ToyOutcome& outcome) {
    EXPECT_EQ(outcome.sharding.all_gathers, 2 * blocks - kept + 1);
    EXPECT_EQ(outcome.sharding.reduce_scatters, blocks + 1);
    EXPECT_EQ(outcome.sharding.all_reduces, 0);
  });
  ToyRun without_reshard = run;
  without_reshard.policy.reshard_after_forward = false;
  RunToy(NodeMap::OneNode(2), without_reshard,
         [](const ToyOutcome& outcome) { EXPECT_EQ(outcome.sharding.all_gathers, blocks + 1); });
  ToyRun root = run;
  root.policy.reshard_root_after_forward = true;
  RunToy(NodeMap::OneNode(2), root,
         [](const ToyOutcome& outcome) { EXPECT_EQ(outcome.sharding.all_gathers, 2 * (blocks + 1) - kept); });
  RunToy(NodeMap::OneNode(4), {.replicate = 2, .shard = 2},
         [](const ToyOutcome& outcome) { EXPECT_EQ(outcome.sharding.all_reduces, blocks + 1); });
}

TEST(FullyShard, GathersNothingInPlace) {
  for (const auto& [reshard, dtype, layout] : {std::tuple{true, DType::kF32, FlatKind::kContiguous},
                                               {false, DType::kF32, FlatKind::kContiguous},
                                               {true, DType::kBF16, FlatKind::kContiguous},
                                               {true, DType::kF32, FlatKind::kRows},
                                               {true, DType::kBF16, FlatKind::kRows}}) {
    ToyRun run{.replicate = 2, .shard = 2, .microbatches = 3};
    run.policy.layout = layout;
    run.policy.node_shared = NodeShared::kOn;
    run.policy.reshard_after_forward = reshard;
    run.policy.param_dtype = dtype;
    RunToy(NodeMap::RanksPerNode(4, 2), run, [](const ToyOutcome& outcome) {
      EXPECT_EQ(outcome.sharding.all_gathers, 0);
      EXPECT_EQ(outcome.engine.all_gather_bytes, 0);
      EXPECT_EQ(outcome.peaks.image_bytes, 0);
      ExpectCosts(outcome);
    });
  }
}

TEST(FullyShard, TrainsIn16BitsCloseToFp32AtTheCostsOfTheFormulas) {
  for (const auto& [replicate, shard] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
    for (const FlatKind layout : kFlatKinds) {
      for (const auto& [param, reduce] :
           {std::pair{DType::kBF16, DType::kF32}, std::pair{DType::kF32, DType::kBF16},
            std::pair{DType::kBF16, DType::kBF16}, std::pair{DType::kF16, DType::kF16}}) {
        ToyRun run{.replicate = replicate, .shard = shard};
        run.policy.layout = layout;
        run.policy.param_dtype = param;
        run.policy.reduce_dtype = reduce;
        const ToyOutcome alone = *TrainToyOnOneRank(run);
        RunToy(NodeMap::OneNode(replicate * shard), run, [&alone](const ToyOutcome& outcome) {
          ExpectNear(outcome.weights, alone.weights, 0.02F);
          ExpectCosts(outcome);
        });
      }
    }
  }
}

TEST(FullyShard, SumsMicrobatchesBeforeOneReduction) {
  for (const FlatKind layout : kFlatKinds) {
    ToyRun run{.replicate = 2, .shard = 2, .microbatches = 3};
    run.policy.layout = layout;
    const ToyOutcome alone = *TrainToyOnOneRank(run);
    RunToy(NodeMap::RanksPerNode(4, 2), run, [&alone](const ToyOutcome& outcome) {
      ExpectNear(outcome.weights, alone.weights, 1e-5F);
      ExpectCosts(outcome);
    });
  }
}

TEST(FullyShard, HoldsAtMostTheImagesOfTheRootTheRunningAndThePrefetchedBlocks) {
  constexpr int64_t kLayers = 6;
  const std::vector<int64_t> sizes(kLayers + 1, 16);
  const size_t root_bytes = 2 * 16 * sizeof(float);                // 16, padded to two shards of 64 bytes.
  const size_t layer_bytes = (16 * 16 + 16 + 16) * sizeof(float);  // The last 16 are padding.
  for (int depth = 0; depth <= ShardingPolicy::kMaxPrefetchDepth; ++depth) {
    ToyRun run{.shard = 2, .sizes = sizes};
    run.policy.node_shared = NodeShared::kOff;
    run.policy.prefetch_depth = depth;
    RunToy(NodeMap::OneNode(2), run, [&](const ToyOutcome& outcome) {
      EXPECT_EQ(outcome.peaks.image_bytes, root_bytes + static_cast<size_t>(1 + depth) * layer_bytes);
      // The running block, two in reduction, and the root.
      EXPECT_LE(outcome.peaks.gradient_bytes, root_bytes + 3 * layer_bytes);
    });
  }
}

TEST(FullyShard, ShardsParametersOnAnyDim) {
  for (const int shard : {2, 3}) {
    ToyRun run{.shard = shard};
    run.policy.layout = FlatKind::kPerParameter;
    run.policy.shard_dim = [](const Parameter& parameter) { return parameter.shape.size() > 1 ? 1 : -1; };
    const ToyOutcome alone = *TrainToyOnOneRank(run);
    RunToy(NodeMap::OneNode(shard), run, [&alone](const ToyOutcome& outcome) {
      ExpectNear(outcome.weights, alone.weights, 1e-5F);
      ExpectCosts(outcome);
    });
  }
}

}  // namespace
}  // namespace weft::testing
