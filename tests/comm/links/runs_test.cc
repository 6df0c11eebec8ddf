// Runs of slices that travel as one message, on fake wire links: credits, and the length of runs.
#include <algorithm>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/links/scheduler_end.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class RunsTest : public ::testing::Test {
 protected:
  RunsTest() { receiver_.options.yield_window_bytes = 20 * kSlice; }

  static CreditScheduler::Channel ChannelTo(int peer) {
    return {.lane = 2, .sequence = 1, .peer = peer, .number = 1};
  }
  void Receive(int64_t first, int64_t slices) {
    Descriptor descriptor;
    descriptor.sequence = 1;
    CreditScheduler::Slice run{first, memory_.data(), static_cast<size_t>(slices) * kSlice};
    run.slices = slices;
    EXPECT_OK(receiver_.scheduler.Receive(ChannelTo(7), WirePhase::kGather, Priority::kBulk, descriptor,
                                          PartShape::OneDim(10), run, &receiver_.owner));
  }
  void DeliverCredits() {
    for (const WireLink::ControlMessage& message : receiver_.link.sent_messages)
      sender_.link.messages.push_back({0, message.bytes});
    receiver_.link.sent_messages.clear();
    EXPECT_OK(sender_.scheduler.Poll(0));
  }
  // Finishes all transfers of the receiver at this time.
  void Arrive(int64_t now_ns) {
    receiver_.link.FinishAll();
    EXPECT_OK(receiver_.scheduler.Poll(now_ns));
  }
  int64_t LongestRun(Priority priority) const {
    return receiver_.scheduler.LongestRun(priority, static_cast<int64_t>(kSlice));
  }

  SchedulerEnd receiver_;
  SchedulerEnd sender_;
  std::vector<std::byte> memory_{100 * kSlice};
};

TEST_F(RunsTest, AreOneMessageForOneCredit) {
  Receive(0, 1);
  Receive(1, 5);
  Receive(6, 2);
  ASSERT_EQ(receiver_.link.in_flight.size(), 3U);
  EXPECT_EQ(receiver_.link.sent_messages.size(), 3U);
  DeliverCredits();
  const CreditScheduler::Channel channel = ChannelTo(0);
  EXPECT_EQ(sender_.scheduler.CreditOf(channel)->slices, 8);
  for (const auto& [first, slices] : {std::pair<int64_t, int64_t>{0, 1}, {1, 5}, {6, 2}}) {
    EXPECT_EQ(sender_.scheduler.SlicesOfMessage(channel, first), slices);
    EXPECT_OK(sender_.scheduler.Send(channel, first, memory_.data(), static_cast<size_t>(slices) * kSlice,
                                     &sender_.owner, slices));
  }
  EXPECT_EQ(sender_.counters.wire_messages, 3);
  EXPECT_EQ(sender_.counters.wire_bytes, static_cast<int64_t>(8 * kSlice));
  sender_.link.FinishAll();
  EXPECT_OK(sender_.scheduler.Poll(0));
  EXPECT_THAT(sender_.owner.done, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  Arrive(0);
  EXPECT_THAT(receiver_.owner.done, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(RunsTest, AreTracedWithTheirSlices) {
  receiver_.trace.Start();
  Receive(0, 1);
  Receive(1, 5);
  Arrive(0);
  std::vector<std::pair<int64_t, int64_t>> traced;
  for (const TracedSlice& slice : receiver_.trace.Stop().slices)
    traced.emplace_back(slice.number, slice.slices);
  EXPECT_THAT(traced, UnorderedElementsAre(Pair(0, 1), Pair(1, 5)));
}

TEST_F(RunsTest, HaveWhatTheLinkBringsInATenthOfAMillisecond) {
  EXPECT_EQ(LongestRun(Priority::kBulk), 1) << "no rate is known";
  EXPECT_OK(receiver_.scheduler.Poll(/*now_ns=*/1'000'000));
  Receive(0, 50);
  Arrive(/*now_ns=*/1'500'000);
  // 50 slices in 500 us.
  EXPECT_EQ(LongestRun(Priority::kBulk), 10);
  receiver_.options.max_run_bytes = 6 * kSlice;
  EXPECT_EQ(LongestRun(Priority::kBulk), 6);
  receiver_.options.max_run_bytes = 3 * kSlice;
  EXPECT_EQ(LongestRun(Priority::kBulk), 1) << "fewer than kFewestInRun slices travel alone";
}

TEST(Runs, AreLongerOverALinkWithoutRendezvous) {
  for (const bool has_rendezvous : {true, false}) {
    SchedulerEnd receiver(has_rendezvous);
    std::vector<std::byte> memory(50 * kSlice);
    CreditScheduler::Slice run{0, memory.data(), memory.size()};
    run.slices = 50;
    EXPECT_OK(receiver.scheduler.Poll(/*now_ns=*/1'000'000));
    EXPECT_OK(receiver.scheduler.Receive({.lane = 2, .sequence = 1, .peer = 7, .number = 1},
                                         WirePhase::kGather, Priority::kBulk, Descriptor(),
                                         PartShape::OneDim(10), run, &receiver.owner));
    receiver.link.FinishAll();
    EXPECT_OK(receiver.scheduler.Poll(/*now_ns=*/1'500'000));
    EXPECT_EQ(receiver.scheduler.LongestRun(Priority::kBulk, static_cast<int64_t>(kSlice)),
              has_rendezvous ? 10 : 25);
  }
}

// The fewest slices of a run are four: those of 100 us pay, and those of 160 us are tried.
TEST_F(RunsTest, AreTriedIfTheyWouldTakeLittleLonger) {
  receiver_.options.slice_bytes = kSlice;
  int64_t now_ns = 1'000'000;
  const auto longest_of_a_series = [&](int64_t ns_of_slice) {
    int64_t longest = 0;
    for (int64_t first = 0; first < 2 * RunTrials::kSlices;) {
      EXPECT_OK(receiver_.scheduler.Poll(now_ns));
      const int64_t slices = LongestRun(Priority::kBulk);
      Receive(first, slices);
      first += slices;
      now_ns += slices * ns_of_slice;
      Arrive(now_ns);
      longest = std::max(longest, slices);
    }
    return longest;
  };
  EXPECT_EQ(longest_of_a_series(/*ns_of_slice=*/60'000), 1);
  EXPECT_EQ(longest_of_a_series(/*ns_of_slice=*/40'000), CreditScheduler::kFewestInRun);
  receiver_.options.max_run_bytes = 3 * kSlice;
  EXPECT_EQ(longest_of_a_series(/*ns_of_slice=*/40'000), 1);
}

TEST_F(RunsTest, HaveAQuarterOfTheYieldWindowWhileAHigherPriorityWantsTheWire) {
  EXPECT_OK(receiver_.scheduler.Poll(/*now_ns=*/1'000'000));
  Receive(0, 50);
  Arrive(/*now_ns=*/1'500'000);
  receiver_.scheduler.RegisterDemand(Priority::kReduce);
  EXPECT_EQ(LongestRun(Priority::kReduce), 10);
  EXPECT_EQ(LongestRun(Priority::kBulk), 5);
}

}  // namespace
}  // namespace weft::testing
