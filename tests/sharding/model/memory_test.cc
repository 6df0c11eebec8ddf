// Exact peak memory of a pass, by prefetch depth p and bound f on the reduce-scatters in flight.
//
// Simulated ranks move data slowly and in small pieces, so that no operation ends before a rank waits for it.
// Memory use then reaches its bound. B: bytes of a block; N: of the root; U = N + 6 B: of all parameters;
// S: of a rank's shard of them.
#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/sharded_toy.h"
#include "weft/mesh/simulation.h"
#include "weft/sharding/memory_bounds.h"

namespace weft::testing {
namespace {

constexpr size_t kBlocks = 6;
constexpr size_t kN = sizeof(float) * 2 * 16;              // 16 elements, padded to two shards of 64 bytes.
constexpr size_t kB = sizeof(float) * (16 * 16 + 2 * 16);  // 16 of them padding.
constexpr size_t kU = kN + kBlocks * kB;
constexpr size_t kS = kU / 2;
constexpr size_t kScalars = 512;  // PipelineLanes::kScalarBytes.

struct Peaks {
  size_t forward_images = 0;
  size_t backward_images = 0;
  size_t gradients = 0;
  size_t shards_before = 0;
  size_t shards_after = 0;
  MemoryPeaks by_formula;
};

Peaks PeaksOf(bool reshard, int p, int f, NodeShared node_shared = NodeShared::kOff) {
  ShardingPolicy policy;
  policy.node_shared = node_shared;
  policy.reshard_after_forward = reshard;
  policy.prefetch_depth = p;
  policy.max_reduce_scatters = f;
  SimOptions machine;
  machine.memory_speed = 1e-3;
  Peaks peaks;
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(2), machine, [&](Bootstrap& bootstrap) -> absl::Status {
        EngineOptions options;
        options.piece_bytes = 64;
        WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap, options));
        WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
        ToyNet net(std::vector<int64_t>(kBlocks + 1, 16));
        WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                           LoadInitialValues(kToySeed)));
        CommContext& context = PartsOf(*model).context;
        Peaks mine;
        mine.shards_before = context.memory().shard_bytes();
        net.AddForwardPostHook([&](Module&, Invocation&, Tensors&) {
          mine.forward_images = context.memory().peaks().image_bytes;
          context.memory().ResetPeaks();
          return absl::OkStatus();
        });
        WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), 2, 0, 0, 1));
        mine.backward_images = context.memory().peaks().image_bytes;
        mine.gradients = context.memory().peaks().gradient_bytes;
        mine.shards_after = context.memory().shard_bytes();
        const StepShape shape{.shard_size = 2, .residency = model->residency().residency};
        WEFT_ASSIGN_OR_RETURN(mine.by_formula,
                              LargestPeaks(MembersOf(*model), policy, shape, /*updates_in_backward=*/false));
        if (bootstrap.rank() == 0) peaks = mine;
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
  return peaks;
}

TEST(MemoryTable, HoldsImagesOfTheRunningBlockThePrefetchedBlocksAndTheRoot) {
  for (const int p : {0, 1, 2}) {
    for (const int f : {0, 1, 2}) {
      SCOPED_TRACE(absl::StrCat("p ", p, ", f ", f));
      const Peaks peaks = PeaksOf(/*reshard=*/true, p, f);
      EXPECT_EQ(peaks.forward_images, static_cast<size_t>(1 + p) * kB + kN);
      EXPECT_EQ(peaks.backward_images, static_cast<size_t>(1 + p) * kB + kN);
    }
  }
}

TEST(MemoryTable, HoldsAllImagesWithoutResharding) {
  for (const int p : {0, 1, 2}) {
    const Peaks peaks = PeaksOf(/*reshard=*/false, p, 1);
    EXPECT_EQ(peaks.forward_images, kU);
    EXPECT_EQ(peaks.backward_images, kU);
  }
}

TEST(MemoryTable, HoldsGradientsOfTheRunningBlockTheReductionsInFlightAndTheRoot) {
  for (const bool reshard : {true, false}) {
    for (const int p : {0, 1, 2}) {
      for (const int f : {0, 1, 2}) {
        EXPECT_EQ(PeaksOf(reshard, p, f).gradients, static_cast<size_t>(1 + f) * kB + kN)
            << "p " << p << ", f " << f;
      }
    }
  }
}

TEST(MemoryTable, HoldsAShardOfTheParametersAndOneOfTheGradients) {
  for (const NodeShared node_shared : {NodeShared::kOff, NodeShared::kOn}) {
    const Peaks peaks = PeaksOf(/*reshard=*/true, 1, 2, node_shared);
    EXPECT_EQ(peaks.shards_before, kS + kScalars);
    EXPECT_EQ(peaks.shards_after, 2 * kS + kScalars);
  }
}

TEST(MemoryTable, HasThePeaksOfTheFormula) {
  for (const NodeShared node_shared : {NodeShared::kOff, NodeShared::kOn}) {
    for (const bool reshard : {true, false}) {
      for (const int p : {0, 1, 2}) {
        for (const int f : {0, 1, 2}) {
          SCOPED_TRACE(absl::StrCat("reshard ", reshard, ", p ", p, ", f ", f));
          const Peaks peaks = PeaksOf(reshard, p, f, node_shared);
          EXPECT_EQ(peaks.by_formula.image_bytes, std::max(peaks.forward_images, peaks.backward_images));
          EXPECT_EQ(peaks.by_formula.gradient_bytes, peaks.gradients);
          EXPECT_EQ(peaks.by_formula.shard_bytes + kScalars, peaks.shards_after);
        }
      }
    }
  }
}

TEST(MemoryTable, HoldsNoImageIfShardsAreInPlace) {
  for (const bool reshard : {true, false}) {
    const Peaks peaks = PeaksOf(reshard, 1, 1, NodeShared::kOn);
    EXPECT_EQ(peaks.forward_images, 0);
    EXPECT_EQ(peaks.backward_images, 0);
    EXPECT_EQ(peaks.gradients, 2 * kB + kN);
  }
}

// The last reductions of a microbatch run while the next one begins. Outputs of the first microbatch become
// sums, so that this takes memory from the third on.
TEST(LargestPeaks, CountOutputsOfTwoMicrobatches) {
  constexpr int64_t kLarge = 4096;
  constexpr int64_t kSmall = 64;
  const auto parameters = MakeParameters({{kLarge}, {kSmall}, {kLarge}});
  const std::vector<GroupMembers> groups = {{"root", -1, {parameters[0]}},
                                            {"block", kRootGroup, {parameters[1]}},
                                            {"head", kRootGroup, {parameters[2]}}};
  ShardingPolicy policy;
  policy.max_reduce_scatters = 1;
  const auto shard_bytes = [&](int microbatches) {
    StepShape shape{.shard_size = 2, .microbatches = microbatches};
    shape.gradient_sync = GradientSync::kReduceScatter;
    return LargestPeaks(groups, policy, shape, /*updates_in_backward=*/false)->shard_bytes;
  };
  // The root's output beside the head's, instead of beside the block's.
  EXPECT_EQ(shard_bytes(3) - shard_bytes(2), static_cast<size_t>(kLarge - kSmall) / 2 * sizeof(float));
  EXPECT_EQ(shard_bytes(4), shard_bytes(3));
}

// A frozen group is not reduced, so it takes no place among the reductions in flight.
TEST(LargestPeaks, CountNoReductionOfFrozenGroups) {
  const auto gradient_bytes = [](bool has_frozen) {
    const auto parameters = MakeParameters({{64}, {64}, {64}, {64}, {64}});
    std::vector<GroupMembers> groups = {{"root", -1, {parameters[0]}}};
    for (size_t i = 1; i < parameters.size(); ++i) {
      parameters[i]->requires_grad = i % 2 == 0;
      if (i % 2 == 0 || has_frozen) groups.push_back({parameters[i]->name, kRootGroup, {parameters[i]}});
    }
    ShardingPolicy policy;
    policy.max_reduce_scatters = 2;
    return LargestPeaks(groups, policy, {.shard_size = 2}, /*updates_in_backward=*/false)->gradient_bytes;
  };
  EXPECT_EQ(gradient_bytes(true), gradient_bytes(false));
}

}  // namespace
}  // namespace weft::testing
