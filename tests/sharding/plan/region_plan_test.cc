#include "sharding/plan/region_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::testing {
namespace {

constexpr size_t kRoot = 192;
constexpr size_t kBlock = 1024;

// Region of a root and six equal blocks in a row.
size_t RegionBytes(const ShardingPolicy& policy) {
  return PlanRegionBytes(ModuleOrder({-1, 0, 0, 0, 0, 0, 0}),
                         {kRoot, kBlock, kBlock, kBlock, kBlock, kBlock, kBlock}, policy);
}

TEST(RegionPlan, HoldsTheRootTheRunningBlockAndThePrefetchesOfBothPasses) {
  for (const size_t depth : {0, 1, 2}) {
    ShardingPolicy policy;
    policy.prefetch_depth = static_cast<int>(depth);
    EXPECT_EQ(RegionBytes(policy), kRoot + (1 + 2 * depth) * kBlock);
    policy.reshard_after_forward = false;
    EXPECT_EQ(RegionBytes(policy), kRoot + 6 * kBlock);
  }
}

TEST(RegionPlan, NeedsNoBytesForEmptyGroups) {
  EXPECT_EQ(PlanRegionBytes(ModuleOrder({-1, 0}), {size_t{0}, kBlock}, {}), kBlock);
  EXPECT_EQ(PlanRegionBytes(ModuleOrder({-1}), {size_t{0}}, {}), 0);
}

// The blocks alternate between two ranges. The head is larger than either and is placed after both; one of
// them is free then.
TEST(RegionPlan, HasRoomForALargerGroupAfterTheBlocks) {
  constexpr size_t kHead = 8192;
  const std::vector<size_t> bytes = {kRoot, kBlock, kBlock, kBlock, kBlock, kHead};
  EXPECT_EQ(PlanRegionBytes(ModuleOrder({-1, 0, 0, 0, 0, 0}), bytes, {}), kRoot + 2 * kBlock + kHead);
}

TEST(RegionPlan, HoldsNestedGroupsNextToTheirParents) {
  ShardingPolicy policy;
  policy.prefetch_depth = 0;
  EXPECT_EQ(PlanRegionBytes(ModuleOrder({-1, 0, 1, 1, 0}), {kRoot, kBlock, kBlock, kBlock, kBlock}, policy),
            kRoot + 2 * kBlock);
}

}  // namespace
}  // namespace weft::testing
