// Intervals between polls of the wire.
#include "src/comm/links/poll_times.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr int64_t kMicrosecond = 1'000;
constexpr double kRate = 2.5;  // 20 Gbit/s: a mebibyte in 419 us.
constexpr int64_t kMebibyteNs = (1 << 20) * 2 / 5;
constexpr int64_t kLater = 1'000'000 * kMicrosecond;

TEST(PollTimes, AreVeryLongUntilARateIsMeasured) {
  const PollTimes times;
  EXPECT_GT(times.IntervalNs(0, 0, 0, false), kLater);
}

TEST(PollTimes, AreThoseOfAMebibyteWhileBytesFlow) {
  const PollTimes times;
  EXPECT_EQ(times.IntervalNs(0, kRate, 2 << 20, false), kMebibyteNs);
  EXPECT_EQ(times.IntervalNs(0, 1000 * kRate, 0, false), 25 * kMicrosecond) << "a poll takes time";
}

TEST(PollTimes, GrowWithTheTimeSinceAnOperationHasBegun) {
  PollTimes times;
  times.BeginOperation(kLater);
  EXPECT_EQ(times.IntervalNs(kLater, kRate, 0, false), kMebibyteNs / 8);
  EXPECT_EQ(times.IntervalNs(kLater + 2 * kMebibyteNs, kRate, 0, false), kMebibyteNs / 4);
  EXPECT_EQ(times.IntervalNs(kLater + 9 * kMebibyteNs, kRate, 0, false), kMebibyteNs);
}

TEST(PollTimes, AreHalfOfTheTimeThatTheLastBytesTake) {
  PollTimes times;
  EXPECT_EQ(times.IntervalNs(kLater, kRate, 100'000, false), 20 * kMicrosecond);
  EXPECT_EQ(times.IntervalNs(kLater, kRate, 100'000, true), kMebibyteNs) << "a silent peer may be late";
  times.BeginSend(200'000, kLater);
  EXPECT_EQ(times.IntervalNs(kLater, kRate, 100'000, false), 40 * kMicrosecond);
  times.EndSend(200'000);
  EXPECT_EQ(times.IntervalNs(kLater, kRate, 0, false), kMebibyteNs);
}

TEST(PollTimes, FollowTheRateOfSendsIfNothingArrives) {
  PollTimes times;
  for (int64_t i = 0; i < 40; ++i) {
    times.BeginSend(250'000, kLater + i * 100 * kMicrosecond);
    times.EndSend(250'000);
  }
  const int64_t interval_ns = times.IntervalNs(2 * kLater, 0, 0, false);
  EXPECT_NEAR(static_cast<double>(interval_ns), kMebibyteNs, 0.2 * kMebibyteNs);
}

}  // namespace
}  // namespace weft
