// The formulas against numbers computed by hand. The tests of FullyShard and of training runs assert that
// engine and sharding move these bytes.
#include "weft/sharding/byte_formulas.h"

#include <gtest/gtest.h>

namespace weft::testing {
namespace {

constexpr int64_t kW = 4096;  // Bytes of the group below: 1024 elements in fp32, without padding.

FlatLayout Layout(int shard_size, FlatKind kind = FlatKind::kContiguous) {
  return FlatLayout::Make(kind, {{{16, 64}}}, shard_size, 16).value();
}

// Costs of a group that backward gathers again.
StepCosts Costs(const StepShape& shape, const ShardingPolicy& policy = {}) {
  return CostsOfGroup(Layout(shape.shard_size, policy.layout), /*is_gathered_again=*/true, policy, shape);
}

TEST(ByteFormulas, GatherTwicePerMicrobatchAndReduceByGradientSyncForFsdp) {
  StepShape shape = {.shard_size = 4, .microbatches = 3, .gradient_sync = GradientSync::kLast};
  EXPECT_EQ(Costs(shape).all_gathers, 6);
  EXPECT_EQ(Costs(shape).all_gather_bytes, int64_t{2} * 3 * kW * 3 / 4);
  EXPECT_EQ(Costs(shape).reduce_scatters, 1);
  EXPECT_EQ(Costs(shape).reduce_scatter_bytes, kW * 3 / 4);
  EXPECT_EQ(Costs(shape).all_reduces, 0);
  for (const GradientSync sync : {GradientSync::kReduceScatter, GradientSync::kEach}) {
    shape.gradient_sync = sync;
    EXPECT_EQ(Costs(shape).reduce_scatters, 3);
    EXPECT_EQ(Costs(shape).reduce_scatter_bytes, 3 * kW * 3 / 4);
  }
}

TEST(ByteFormulas, GatherOnceIfAGroupStaysUnshardedForBackward) {
  const StepShape shape = {.shard_size = 4, .microbatches = 3};
  const StepCosts kept = CostsOfGroup(Layout(4), /*is_gathered_again=*/false, {}, shape);
  EXPECT_EQ(kept.all_gather_bytes, 3 * kW * 3 / 4);
  EXPECT_EQ(kept.all_gathers, 3);
}

TEST(ByteFormulas, GatherAllGroupsAgainExceptTheRootAndTheFirstOnesOfBackward) {
  const std::vector<FlatLayout> layouts(6, Layout(4));
  const auto gathers = [&](const ShardingPolicy& policy) {
    return CostsOfGroups(layouts, policy, {.shard_size = 4}).all_gathers;
  };
  ShardingPolicy policy;
  for (int depth = 0; depth <= 2; ++depth) {
    policy.prefetch_depth = depth;
    EXPECT_EQ(gathers(policy), 6 + 5 - (1 + depth));
  }
  policy.reshard_root_after_forward = true;
  EXPECT_EQ(gathers(policy), 6 + 6 - 3);
  policy.reshard_after_forward = false;
  EXPECT_EQ(gathers(policy), 6 + 1);
}

TEST(ByteFormulas, AddAnAllReduceOfShardsForHsdp) {
  StepShape shape = {.shard_size = 2, .replicate_size = 4, .microbatches = 3};
  EXPECT_EQ(Costs(shape).reduce_scatter_bytes, 3 * kW / 2);
  EXPECT_EQ(Costs(shape).all_reduces, 1);
  EXPECT_EQ(Costs(shape).all_reduce_bytes, 2 * kW / 2 * 3 / 4);
  shape.gradient_sync = GradientSync::kEach;
  EXPECT_EQ(Costs(shape).all_reduces, 3);
  EXPECT_EQ(Costs(shape).all_reduce_bytes, int64_t{3} * 2 * kW / 2 * 3 / 4);
}

TEST(ByteFormulas, ReduceScatterAndGatherOncePerStepForAnOptimizerOverReplicas) {
  ShardingPolicy policy;
  policy.shard_optimizer_over_replicas = true;
  StepShape shape = {.shard_size = 2, .replicate_size = 4, .microbatches = 3, .ranks_per_node = 2};
  const StepCosts reduced = Costs(shape);
  const StepCosts scattered = Costs(shape, policy);
  const int64_t half = kW / 2 * 3 / 4;
  EXPECT_EQ(scattered.all_reduces, 0);
  EXPECT_EQ(scattered.all_reduce_bytes, 0);
  EXPECT_EQ(scattered.reduce_scatters, reduced.reduce_scatters + 1);
  EXPECT_EQ(scattered.reduce_scatter_bytes, reduced.reduce_scatter_bytes + half);
  EXPECT_EQ(scattered.all_gathers, reduced.all_gathers + 1);
  EXPECT_EQ(scattered.all_gather_bytes, reduced.all_gather_bytes + half);
  EXPECT_EQ(scattered.wire_bytes, reduced.wire_bytes);
  EXPECT_EQ(ForwardCostsOfGroup(Layout(2), policy, shape).all_gathers, 2);
  shape.gradient_sync = GradientSync::kEach;
  EXPECT_EQ(Costs(shape, policy).reduce_scatter_bytes, reduced.reduce_scatter_bytes + 3 * half);
  EXPECT_EQ(Costs(shape, policy).all_gathers, reduced.all_gathers + 1);
}

TEST(ByteFormulas, HaveOnlyAnAllReduceForDdp) {
  const StepCosts costs = Costs({.replicate_size = 8});
  EXPECT_EQ(costs.all_gathers, 0);
  EXPECT_EQ(costs.reduce_scatters, 0);
  EXPECT_EQ(costs.all_reduce_bytes, 2 * kW * 7 / 8);
}

TEST(ByteFormulas, ReduceNothingForAFrozenGroup) {
  FlatParameter frozen{{16, 64}};
  frozen.trainable = false;
  const auto layout = FlatLayout::Make(FlatKind::kContiguous, {frozen}, 2, 16).value();
  const StepCosts costs = CostsOfGroup(layout, true, {}, {.shard_size = 2, .replicate_size = 2});
  EXPECT_EQ(costs.all_gathers, 2);
  EXPECT_EQ(costs.reduce_scatters + costs.all_reduces, 0);
  EXPECT_EQ(costs.reduce_scatter_bytes + costs.all_reduce_bytes + costs.copied_bytes, 0);
}

TEST(ByteFormulas, ReduceTheTrainablePartOfAPartlyFrozenGroup) {
  // There are four shards of 256 elements. Trainable parameters fill one and a quarter of them.
  FlatParameter frozen{{11, 64}};
  frozen.trainable = false;
  const auto layout = FlatLayout::Make(FlatKind::kContiguous, {frozen, {{5, 64}}}, 4, 16).value();
  const auto costs = [&](int shard_rank) {
    return CostsOfGroup(
        layout, true, {},
        {.shard_size = 4, .replicate_size = 2, .shard_rank = shard_rank, .ranks_per_node = 4});
  };
  EXPECT_EQ(costs(0).reduce_scatter_bytes, 256 * 4 * 3);
  EXPECT_EQ(costs(1).reduce_scatter_bytes, 64 * 4 * 3);
  EXPECT_EQ(costs(2).reduce_scatter_bytes, 0);
  EXPECT_EQ(costs(1).all_reduce_bytes, 64 * 4);
  EXPECT_EQ(costs(3).all_reduces, 1);  // Empty: all ranks of the group submit it.
  EXPECT_EQ(costs(3).wire_bytes, 2 * 320 * 4);
}

TEST(ByteFormulas, GatherOnceInAForwardWithoutGradients) {
  const StepShape shape = {.shard_size = 4};
  const StepCosts costs = ForwardCostsOfGroup(Layout(4), {}, shape);
  EXPECT_EQ(costs.all_gathers, 1);
  EXPECT_EQ(costs.all_gather_bytes, kW * 3 / 4);
  EXPECT_EQ(costs.reduce_scatters + costs.all_reduces, 0);
}

TEST(ByteFormulas, SendOneCopyPerNodeBetweenNodes) {
  constexpr int kNodes = 2;
  // FSDP over both nodes: a node sends (2W + G)(M-1)/M.
  EXPECT_EQ(Costs({.shard_size = 4, .ranks_per_node = 2}).wire_bytes / kNodes, 3 * kW / 2);
  // HSDP with the shard group inside a node, and DDP: 2G(M-1)/M.
  EXPECT_EQ(Costs({.shard_size = 2, .replicate_size = 2, .ranks_per_node = 2}).wire_bytes / kNodes, kW);
  EXPECT_EQ(Costs({.replicate_size = 4, .ranks_per_node = 2}).wire_bytes / kNodes, kW);
  // Two shard groups, each on two nodes: both gather and reduce across nodes, and pairs of ranks all-reduce
  // their shards.
  const StepCosts two_groups = Costs({.shard_size = 4, .replicate_size = 2, .ranks_per_node = 2});
  EXPECT_EQ(two_groups.wire_bytes, 2 * (2 * kW + kW) + 2 * kW);
  EXPECT_EQ(Costs({.shard_size = 4}).wire_bytes, 0);
}

TEST(ByteFormulas, CopyEachPartOnceToEachOtherShareDomainThatSharesAnImage) {
  StepShape shape = {.shard_size = 8, .ranks_per_node = 4, .ranks_per_domain = 2};
  // Two gathers of a step. Each of the two nodes has two domains of two ranks, and reads one sum of each.
  const int64_t sums = kW * 2;
  EXPECT_EQ(Costs(shape).cross_domain_bytes, 2 * kW * 2 + sums);
  shape.residency = Residency::kNodeShared;
  EXPECT_EQ(Costs(shape).cross_domain_bytes, 2 * kW * 2 * 1 + sums);
  EXPECT_EQ(Costs({.shard_size = 8, .ranks_per_node = 4}).cross_domain_bytes, 0);
}

TEST(ByteFormulas, ReduceOneSumOfEachShareDomain) {
  // Shard groups lie in domains. Each of the two replicate groups has a rank in each domain of two nodes, and
  // half of the gradients.
  StepShape shape = {.shard_size = 2, .replicate_size = 4, .ranks_per_node = 4, .ranks_per_domain = 2};
  shape.residency = Residency::kInPlace;
  EXPECT_EQ(Costs(shape).cross_domain_bytes,
            2 * ReduceScatterCrossBytes(kW / 2, 2, 4) + 2 * PrivateGatherCrossBytes(kW / 2, 4, 2, 4));
  EXPECT_EQ(Costs(shape).cross_domain_bytes, 3 * kW);
  // On one node, an all-reduce of at most 4 KiB has no phases.
  shape.replicate_size = 2;
  EXPECT_EQ(Costs(shape).cross_domain_bytes, 0);
  // Sums of several ranks of a domain are fp32; a rank that is alone in its domain is read as it is.
  ShardingPolicy bf16;
  bf16.reduce_dtype = DType::kBF16;
  bf16.param_dtype = DType::kBF16;
  shape = {.shard_size = 4, .ranks_per_domain = 2, .residency = Residency::kInPlace};
  EXPECT_EQ(Costs(shape, bf16).cross_domain_bytes, kW);
  shape.ranks_per_domain = 1;
  EXPECT_EQ(Costs(shape, bf16).cross_domain_bytes, 3 * kW / 2);
}

TEST(ByteFormulas, CopyNothingWithZeroCopyInFp32AndCastTheShardInBf16) {
  const StepShape shape = {.shard_size = 4};
  EXPECT_EQ(Costs(shape).copied_bytes, 0);
  ShardingPolicy bf16;
  bf16.param_dtype = DType::kBF16;
  EXPECT_EQ(Costs(shape, bf16).copied_bytes, 2 * (kW / 4) / 2);
  EXPECT_EQ(Costs({.shard_size = 4, .microbatches = 3, .residency = Residency::kInPlace}, bf16).copied_bytes,
            (kW / 4) / 2);
  // Two copies out of gathered buffers, and one into the reduction's input.
  ShardingPolicy without_zero_copy;
  without_zero_copy.layout = FlatKind::kPerParameter;
  EXPECT_EQ(Costs(shape, without_zero_copy).copied_bytes, 3 * kW);
}

TEST(ByteFormulas, CountPaddingAsTheEngineDoes) {
  // 15 x 16 and 15 elements, each aligned to a cache line, and shards padded to cache lines.
  const auto layout = FlatLayout::Make(FlatKind::kContiguous, {{{15, 16}}, {{15}}}, 3, 16).value();
  const StepCosts costs = CostsOfGroup(layout, true, {}, {.shard_size = 3});
  EXPECT_EQ(costs.reduce_scatter_bytes, 2 * 96 * 4);
}

}  // namespace
}  // namespace weft::testing
