#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/plan/region_plan.h"

namespace weft::testing {
namespace {

constexpr size_t kRoot = 192;
constexpr size_t kBlock = 1024;

// A root and six equal blocks in a row.
size_t RegionOf(const ShardingPolicy& policy) {
  return PlanRegionBytes(ModuleOrder({-1, 0, 0, 0, 0, 0, 0}),
                         {kRoot, kBlock, kBlock, kBlock, kBlock, kBlock, kBlock}, policy);
}

TEST(ImageRegion, HoldsTheRootTheRunningBlockThoseAheadAndThoseAheadOverTheTurn) {
  for (const size_t depth : {0, 1, 2}) {
    ShardingPolicy policy;
    policy.prefetch_depth = static_cast<int>(depth);
    EXPECT_EQ(RegionOf(policy), kRoot + (1 + 2 * depth) * kBlock);
    policy.reshard_after_forward = false;
    EXPECT_EQ(RegionOf(policy), kRoot + 6 * kBlock);
  }
}

TEST(ImageRegion, NeedsNothingForGroupsWithoutElements) {
  EXPECT_EQ(PlanRegionBytes(ModuleOrder({-1, 0}), {size_t{0}, kBlock}, {}), kBlock);
  EXPECT_EQ(PlanRegionBytes(ModuleOrder({-1}), {size_t{0}}, {}), 0);
}

// The head comes to lie behind the two places in which blocks take turns, one of which is then free.
TEST(ImageRegion, HasRoomForALargerGroupBehindTheBlocks) {
  constexpr size_t kHead = 8192;
  const std::vector<size_t> bytes = {kRoot, kBlock, kBlock, kBlock, kBlock, kHead};
  EXPECT_EQ(PlanRegionBytes(ModuleOrder({-1, 0, 0, 0, 0, 0}), bytes, {}), kRoot + 2 * kBlock + kHead);
}

TEST(ImageRegion, HoldsGroupsThatLieInOthersBesideThem) {
  ShardingPolicy policy;
  policy.prefetch_depth = 0;
  EXPECT_EQ(PlanRegionBytes(ModuleOrder({-1, 0, 1, 1, 0}), {kRoot, kBlock, kBlock, kBlock, kBlock}, policy),
            kRoot + 2 * kBlock);
}

}  // namespace
}  // namespace weft::testing
