#include "weft/mesh/unpaused_clock.h"

#include <gtest/gtest.h>

#include "tests/support/forwarding_runtime.h"

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

TEST(UnpausedClock, TellsWhenTheLastPauseEnded) {
  UnpausedClock clock(10 * kSecond);
  clock.Read(11 * kSecond);
  EXPECT_EQ(clock.resumed_ns(), 0);
  for (const int64_t now : {60 * kSecond, 90 * kSecond}) {
    clock.Read(now);
    clock.Read(now + kSecond);
    EXPECT_EQ(clock.resumed_ns(), now);
  }
}

class SetRuntime final : public ForwardingRuntime {
 public:
  using ForwardingRuntime::ForwardingRuntime;
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 100 * kSecond;
};

TEST(UnpausedDeadline, HasPassedAfterItsTimeoutWithoutPauses) {
  SystemRuntime base;
  SetRuntime runtime(base);
  UnpausedDeadline deadline(runtime, absl::Seconds(6));
  EXPECT_EQ(deadline.Left(), absl::Seconds(6));
  runtime.now_ns += 60 * kSecond;
  EXPECT_EQ(deadline.Left(), absl::Seconds(6));
  for (int seconds = 1; seconds <= 6; ++seconds) {
    EXPECT_FALSE(deadline.HasPassed());
    runtime.now_ns += kSecond;
  }
  EXPECT_TRUE(deadline.HasPassed());
}

}  // namespace
}  // namespace weft::testing
