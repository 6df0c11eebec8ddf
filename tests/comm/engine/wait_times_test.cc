#include "src/comm/engine/wait_times.h"

#include <gtest/gtest.h>

#include "weft/mesh/runtime.h"

namespace weft::testing {
namespace {

using Step = WaitSteps::Step;

// A waiting thread, the time, and what its polls find.
struct WaitingThread {
  explicit WaitingThread(bool has_core) : times(TimesOf(runtime, has_core)) {}
  // The step after a poll at the end of `ns` more nanoseconds.
  Step After(int64_t ns, bool advanced) {
    now_ns += ns;
    return steps.Next({advanced, uses_wire, has_fast_link, now_ns});
  }
  // The time until the thread first sleeps, if each poll and yield takes a microsecond and finds nothing.
  int64_t NsUntilSleep() {
    const int64_t begin = now_ns;
    while (After(kMicrosecond, /*advanced=*/false) != Step::kSleep) continue;
    return now_ns - begin;
  }

  SystemRuntime runtime;
  WaitTimes times;
  WaitSteps steps{times, 0};
  int64_t now_ns = 0;
  bool uses_wire = true, has_fast_link = false;
};

TEST(WaitSteps, SleepLaterOnAFastLinkThanOnASlowOne) {
  for (const bool has_core : {false, true}) {
    WaitingThread slow(has_core), fast(has_core);
    fast.has_fast_link = true;
    EXPECT_EQ(slow.NsUntilSleep(), slow.times.wire_yield_ns);
    EXPECT_EQ(fast.NsUntilSleep(), fast.times.fast_wire_yield_ns);
    EXPECT_GE(fast.times.fast_wire_yield_ns, 4 * slow.times.wire_yield_ns);
  }
}

TEST(WaitSteps, CountTheTimeWithoutProgressAlone) {
  WaitingThread thread(/*has_core=*/true);
  for (int poll = 0; poll < 100; ++poll) {
    EXPECT_NE(thread.After(thread.times.wire_yield_ns - 1, /*advanced=*/false), Step::kSleep);
    EXPECT_EQ(thread.After(1, /*advanced=*/true), Step::kPoll);
  }
  EXPECT_EQ(thread.NsUntilSleep(), thread.times.wire_yield_ns);
}

TEST(WaitSteps, YieldAtTheEndOfATurnIfRanksShareHardwareThreads) {
  WaitingThread thread(/*has_core=*/false);
  for (int turn = 0; turn < 3; ++turn) {
    for (int64_t ns = 0; ns + kMicrosecond < thread.times.turn_ns; ns += kMicrosecond)
      ASSERT_EQ(thread.After(kMicrosecond, /*advanced=*/true), Step::kPoll);
    EXPECT_EQ(thread.After(kMicrosecond, /*advanced=*/true), Step::kYield);
    // Others run meanwhile. The next turn begins with the next poll.
    EXPECT_EQ(thread.After(kMillisecond, /*advanced=*/true), Step::kPoll);
  }
}

TEST(WaitSteps, YieldWithoutProgressBeginsATurn) {
  WaitingThread thread(/*has_core=*/false);
  EXPECT_EQ(thread.After(thread.times.turn_ns / 8, /*advanced=*/false), Step::kYield);
  EXPECT_EQ(thread.After(0, /*advanced=*/true), Step::kPoll);
  EXPECT_EQ(thread.After(thread.times.turn_ns - 1, /*advanced=*/true), Step::kPoll);
  EXPECT_EQ(thread.After(1, /*advanced=*/true), Step::kYield);
}

TEST(WaitSteps, NeverYieldDuringProgressWithAHardwareThreadOrOnTheNode) {
  WaitingThread alone(/*has_core=*/true), on_node(/*has_core=*/false);
  on_node.uses_wire = false;
  for (int poll = 0; poll < 100; ++poll) {
    EXPECT_EQ(alone.After(kMillisecond, /*advanced=*/true), Step::kPoll);
    EXPECT_EQ(on_node.After(kMillisecond, /*advanced=*/true), Step::kPoll);
  }
}

// Doorbells do not ring for messages of other nodes.
TEST(WaitSteps, WatchTheDoorbellOnlyIfNothingElseMustBePolled) {
  WaitingThread wire(/*has_core=*/true), on_node(/*has_core=*/true);
  on_node.uses_wire = false;
  EXPECT_EQ(wire.After(kMicrosecond, /*advanced=*/false), Step::kPoll);
  EXPECT_EQ(on_node.After(kMicrosecond, /*advanced=*/false), Step::kWatchDoorbell);
  EXPECT_EQ(on_node.After(on_node.times.poll_ns, /*advanced=*/false), Step::kYield);
}

}  // namespace
}  // namespace weft::testing
