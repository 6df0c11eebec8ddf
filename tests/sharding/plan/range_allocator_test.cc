#include "sharding/plan/range_allocator.h"

#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::testing {
namespace {

TEST(RangeAllocator, AllocatesTheFirstRangeThatFits) {
  RangeAllocator ranges(640);
  EXPECT_EQ(ranges.Allocate(100), 0);
  EXPECT_EQ(ranges.Allocate(64), 128);
  EXPECT_EQ(ranges.Allocate(320), 192);
  ranges.Free(0);
  EXPECT_EQ(ranges.Allocate(129), std::nullopt);  // 128 bytes are free at the front, and 128 at the end.
  EXPECT_EQ(ranges.Allocate(128), 0);
  EXPECT_EQ(ranges.Allocate(128), 512);
  EXPECT_EQ(ranges.Allocate(1), std::nullopt);
  EXPECT_EQ(ranges.high_water(), 640);
}

TEST(RangeAllocator, MergesFreedRanges) {
  RangeAllocator ranges(256);
  for (const size_t first : {size_t{0}, size_t{64}}) {
    ASSERT_EQ(ranges.Allocate(64), 0);
    ASSERT_EQ(ranges.Allocate(64), 64);
    ranges.Free(first);
    ranges.Free(64 - first);
    EXPECT_EQ(ranges.Allocate(256), 0);
    ranges.Free(0);
  }
}

TEST(RangeAllocator, AllocatesNoByteTwice) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    RangeAllocator ranges(4096);
    std::map<size_t, size_t> allocated;  // Size of each range, by its offset.
    for (int call = 0; call < 100; ++call) {
      const size_t bytes = 1 + random() % 900;
      if (const auto begin = ranges.Allocate(bytes)) {
        EXPECT_EQ(*begin % 64, 0);
        EXPECT_LE(*begin + bytes, 4096);
        for (const auto& [other, size] : allocated)
          EXPECT_TRUE(*begin + bytes <= other || other + size <= *begin);
        allocated.emplace(*begin, bytes);
      } else {
        ASSERT_FALSE(allocated.empty());
        const auto victim = std::next(allocated.begin(), random() % allocated.size());
        ranges.Free(victim->first);
        allocated.erase(victim);
      }
    }
  }
}

}  // namespace
}  // namespace weft::testing
