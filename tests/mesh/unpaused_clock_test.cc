#include "weft/mesh/unpaused_clock.h"

#include <gtest/gtest.h>

namespace weft::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(UnpausedClock, FollowsTheMonotonicClockWhileItIsRead) {
  UnpausedClock clock(100 * kSecond);
  for (int64_t tenths = 0; tenths < 1000; ++tenths) {
    const int64_t now = 100 * kSecond + tenths * kSecond / 10;
    EXPECT_EQ(clock.Read(now), now);
  }
}

TEST(UnpausedClock, LeavesOutEachPause) {
  UnpausedClock clock(0);
  EXPECT_EQ(clock.Read(1 * kSecond), 1 * kSecond);
  EXPECT_EQ(clock.Read(61 * kSecond), 1 * kSecond);
  EXPECT_EQ(clock.Read(62 * kSecond), 2 * kSecond);
  EXPECT_EQ(clock.Read(70 * kSecond), 2 * kSecond);
  EXPECT_EQ(clock.Read(75 * kSecond), 7 * kSecond);  // Not more than kPauseNs.
}

}  // namespace
}  // namespace weft::testing
