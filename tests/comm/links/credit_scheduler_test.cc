// The credit scheduler on a fake wire link: windows, credits, incoming control messages.
#include "src/comm/links/credit_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/links/scheduler_end.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;

constexpr int kLane = 2;
constexpr int kOtherLane = 3;
constexpr int64_t kRun = 2;  // Slices of a run, which is no head slice.

class CreditSchedulerTest : public ::testing::Test {
 protected:
  CreditSchedulerTest() { descriptor_.sequence = 1; }

  static EngineOptions Options() {
    EngineOptions options;
    options.slice_bytes = kSlice;
    options.lane_window_bytes = 4 * kSlice;
    options.yield_window_bytes = 2 * kSlice;
    options.background_window_bytes = 3 * kSlice;
    return options;
  }
  static CreditScheduler::Channel ChannelOf(int lane, int peer = 7, int number = 1) {
    return {lane, 1, peer, number};
  }

  bool MayReceive(Priority priority, int64_t slices = kRun, int lane = kLane, size_t bytes = kSlice) const {
    return scheduler_.MayReceive(lane, WirePhase::kGather, priority, bytes, slices);
  }
  void Receive(Priority priority, int lane = kLane, WirePhase phase = WirePhase::kGather) {
    const int64_t slice = next_slice_++;
    EXPECT_OK(scheduler_.Receive(ChannelOf(lane), phase, priority, descriptor_, PartShape::OneDim(10),
                                 {slice, memory_.data(), kSlice}, &owner_));
  }
  bool Poll() {
    const auto advanced = scheduler_.Poll(now_ns_);
    EXPECT_OK(advanced);
    return advanced.ok() && *advanced;
  }
  // Delivers the control messages for rank 7 to rank 7, as sent by rank 0.
  void DeliverTo(SchedulerEnd& other) {
    for (const WireLink::ControlMessage& message : link_.sent_messages)
      other.link.messages.push_back({0, message.bytes});
    link_.sent_messages.clear();
    EXPECT_OK(other.scheduler.Poll(0));
  }

  const EngineOptions options_ = Options();
  EngineCounters counters_;
  FakeWireLink link_;
  const SystemRuntime runtime_;
  TraceLog trace_{runtime_};
  ControlMail mail_{link_, counters_};
  CreditScheduler scheduler_{link_, mail_, kTags, options_, counters_, trace_};
  Descriptor descriptor_;
  TransferOwner owner_;
  std::vector<std::byte> memory_{kSlice};
  int64_t next_slice_ = 0;
  int64_t now_ns_ = 0;
};

TEST_F(CreditSchedulerTest, LaneWindowBoundsTheBytesInFlightOfALane) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(MayReceive(Priority::kBulk));
    Receive(Priority::kBulk);
  }
  EXPECT_FALSE(MayReceive(Priority::kBulk));
  EXPECT_FALSE(MayReceive(Priority::kPrefetch));
  EXPECT_TRUE(MayReceive(Priority::kBulk, kRun, kOtherLane));
  link_.Finish(link_.in_flight.begin()->first);
  EXPECT_TRUE(Poll());
  EXPECT_THAT(owner_.done, ElementsAre(0));
  EXPECT_TRUE(MayReceive(Priority::kBulk));
}

TEST_F(CreditSchedulerTest, CriticalTransfersHaveTwiceTheLaneWindow) {
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(MayReceive(Priority::kCritical));
    Receive(Priority::kCritical);
  }
  EXPECT_FALSE(MayReceive(Priority::kCritical));
}

TEST_F(CreditSchedulerTest, CriticalTransfersHaveNoMoreOfTheBudget) {
  Poll();
  for (int i = 0; i < 3; ++i) Receive(Priority::kBulk);
  link_.FinishAll();
  now_ns_ += 100'000;
  Poll();
  ASSERT_EQ(scheduler_.budget_bytes(), 24 * static_cast<int64_t>(kSlice));
  int received = 0;
  for (; MayReceive(Priority::kCritical); ++received) Receive(Priority::kCritical);
  EXPECT_EQ(received, 24);
}

TEST_F(CreditSchedulerTest, WindowsGrowToTheBudgetOfAllLanesTogether) {
  scheduler_.EnableBackgroundWindow();
  Poll();
  for (int i = 0; i < 3; ++i) Receive(Priority::kBulk);
  EXPECT_FALSE(MayReceive(Priority::kBulk)) << "nothing is measured yet";
  link_.FinishAll();
  now_ns_ += 100'000;
  Poll();
  // 300 bytes in 0.1 ms, for the 0.6 ms of two polls and twice that time: 2400.
  ASSERT_EQ(scheduler_.budget_bytes(), 24 * static_cast<int64_t>(kSlice));
  int received = 0;
  while (MayReceive(Priority::kBulk, kRun, received % 2 == 0 ? kLane : kOtherLane)) {
    Receive(Priority::kBulk, received % 2 == 0 ? kLane : kOtherLane);
    ++received;
  }
  EXPECT_EQ(received, 24);
  scheduler_.RegisterDemand(Priority::kPrefetch);
  EXPECT_FALSE(MayReceive(Priority::kBulk, kRun, /*lane=*/9)) << "the yield window has no budget";
}

TEST_F(CreditSchedulerTest, BackgroundWindowBoundsAllTrafficBelowCritical) {
  const auto fill = [&] {
    Receive(Priority::kReduce, kLane);
    Receive(Priority::kPrefetch, kOtherLane);
    Receive(Priority::kBulk, kOtherLane);
  };
  fill();
  EXPECT_TRUE(MayReceive(Priority::kReduce));
  scheduler_.EnableBackgroundWindow();
  EXPECT_FALSE(MayReceive(Priority::kReduce));
  EXPECT_FALSE(MayReceive(Priority::kPrefetch, kRun, /*lane=*/9));
  EXPECT_TRUE(MayReceive(Priority::kCritical));
  EXPECT_TRUE(MayReceive(Priority::kBulk, /*slices=*/1, /*lane=*/9)) << "the head slice is always allowed";
  link_.Finish(link_.in_flight.begin()->first);
  Poll();
  EXPECT_TRUE(MayReceive(Priority::kReduce));
}

TEST_F(CreditSchedulerTest, PhasesOfALaneHaveWindowsOfTheirOwn) {
  for (int i = 0; i < 4; ++i) Receive(Priority::kBulk, kLane, WirePhase::kReduce);
  EXPECT_FALSE(scheduler_.MayReceive(kLane, WirePhase::kReduce, Priority::kBulk, kSlice, kRun));
  EXPECT_TRUE(scheduler_.MayReceive(kLane, WirePhase::kGather, Priority::kBulk, kSlice, kRun));
}

TEST_F(CreditSchedulerTest, HeadOfALaneMayAlwaysHaveOneSliceInFlight) {
  constexpr size_t kHuge = 100 * kSlice;
  EXPECT_FALSE(MayReceive(Priority::kBulk, kRun, kLane, kHuge));
  EXPECT_TRUE(MayReceive(Priority::kBulk, /*slices=*/1, kLane, kHuge));
  Receive(Priority::kBulk);
  EXPECT_FALSE(MayReceive(Priority::kBulk, /*slices=*/1, kLane, kHuge));
  EXPECT_TRUE(MayReceive(Priority::kBulk, /*slices=*/1, kOtherLane, kHuge));
}

TEST_F(CreditSchedulerTest, YieldWindowBoundsAllLowerTrafficDuringHigherDemand) {
  Receive(Priority::kReduce, kLane);
  Receive(Priority::kBulk, kOtherLane);
  EXPECT_TRUE(MayReceive(Priority::kBulk));
  scheduler_.RegisterDemand(Priority::kPrefetch);
  EXPECT_FALSE(MayReceive(Priority::kBulk));
  EXPECT_FALSE(MayReceive(Priority::kReduce, kRun, kOtherLane));
  EXPECT_TRUE(MayReceive(Priority::kPrefetch));
  EXPECT_TRUE(MayReceive(Priority::kCritical));
  EXPECT_TRUE(MayReceive(Priority::kBulk, /*slices=*/1, /*lane=*/9)) << "the head slice is always allowed";
}

TEST_F(CreditSchedulerTest, DemandHoldsUntilTheEndOfTheNextPoll) {
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  scheduler_.RegisterDemand(Priority::kCritical);
  EXPECT_FALSE(MayReceive(Priority::kBulk));
  Poll();
  EXPECT_FALSE(MayReceive(Priority::kBulk)) << "lanes that step first in the next poll still see it";
  Poll();
  EXPECT_TRUE(MayReceive(Priority::kBulk));
}

TEST_F(CreditSchedulerTest, RefusesALaneWithoutTags) {
  EXPECT_OK(scheduler_.CheckLane(kTags.lanes - 1, "last"));
  EXPECT_THAT(scheduler_.CheckLane(kTags.lanes, "world/control"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("lane world/control: the transport has message tags up to 1048576"),
                             HasSubstr("enough for 16 lanes between nodes of 7 ranks"),
                             HasSubstr("raise the transport's largest tag (MPI_TAG_UB)"))));
}

TEST_F(CreditSchedulerTest, ReceiveIsPostedBeforeItsCreditIsSent) {
  Receive(Priority::kBulk);
  ASSERT_EQ(link_.in_flight.size(), 1U);
  EXPECT_FALSE(link_.in_flight.begin()->second.send);
  EXPECT_EQ(link_.in_flight.begin()->second.peer, 7);
  EXPECT_EQ(link_.in_flight.begin()->second.tag, TagLayout::kMessages + kLane * kTags.per_lane + 1)
      << "the first tags are those of messages";
  ASSERT_EQ(link_.sent_messages.size(), 1U);
  EXPECT_EQ(link_.sent_messages[0].peer, 7);
  EXPECT_EQ(counters_.wire_bytes, 0) << "the sender counts the bytes of a slice";
}

TEST_F(CreditSchedulerTest, CreditsAddUpAtTheSender) {
  SchedulerEnd sender;
  EXPECT_FALSE(sender.scheduler.CreditOf(ChannelOf(kLane, 0)));
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  DeliverTo(sender);
  const auto credit = sender.scheduler.CreditOf(ChannelOf(kLane, 0));
  ASSERT_TRUE(credit);
  EXPECT_EQ(credit->slices, 2);
  EXPECT_EQ(credit->part, PartShape::OneDim(10));
  EXPECT_FALSE(sender.scheduler.CreditOf(ChannelOf(kLane, 0, 2))) << "a credit of another channel";

  EXPECT_OK(sender.scheduler.Send(ChannelOf(kLane, 0), 0, memory_.data(), kSlice, &owner_));
  EXPECT_TRUE(sender.scheduler.busy());
  EXPECT_EQ(sender.counters.wire_bytes, static_cast<int64_t>(kSlice));
  EXPECT_TRUE(sender.link.in_flight.begin()->second.send);
  EXPECT_EQ(sender.link.in_flight.begin()->second.tag, link_.in_flight.begin()->second.tag);
  sender.link.FinishAll();
  EXPECT_OK(sender.scheduler.Poll(0));
  EXPECT_FALSE(sender.scheduler.busy());

  sender.scheduler.Forget(kLane, 1);
  EXPECT_FALSE(sender.scheduler.CreditOf(ChannelOf(kLane, 0)));
}

TEST_F(CreditSchedulerTest, SenderReceivesTheAnnouncementOfAnEmptyPart) {
  SchedulerEnd sender;
  EXPECT_OK(scheduler_.AnnounceEmptyPart(ChannelOf(kLane), descriptor_));
  EXPECT_TRUE(link_.in_flight.empty());
  DeliverTo(sender);
  const auto credit = sender.scheduler.CreditOf(ChannelOf(kLane, 0));
  ASSERT_TRUE(credit);
  EXPECT_EQ(credit->slices, 0);
  EXPECT_EQ(credit->part, PartShape());
}

TEST_F(CreditSchedulerTest, CreditsRevealMismatchedOperations) {
  SchedulerEnd sender;
  Receive(Priority::kBulk);
  DeliverTo(sender);
  Descriptor mine = descriptor_;
  mine.identity = 5;
  const auto mismatch = sender.scheduler.FindMismatch(kLane, mine);
  ASSERT_TRUE(mismatch);
  EXPECT_EQ(mismatch->first, 0);
  EXPECT_TRUE(IsSameCollective(mismatch->second, descriptor_));
  EXPECT_FALSE(sender.scheduler.FindMismatch(kLane, descriptor_));
  mine.sequence = 2;
  EXPECT_FALSE(sender.scheduler.FindMismatch(kLane, mine)) << "a credit of another sequence";
}

TEST_F(CreditSchedulerTest, ControlMessageThatIsTooShortIsAnError) {
  // Credits, failure notices, questions, answers and partial sums: the first byte is the kind.
  for (const std::string& bytes : {std::string(), std::string("\0", 1), std::string("\1"), std::string("\2"),
                                   std::string("\3"), std::string("\5")}) {
    link_.messages.push_back({4, bytes});
    EXPECT_THAT(scheduler_.Poll(now_ns_), StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 4")));
  }
}

TEST_F(CreditSchedulerTest, SignalsArriveInOrderAlsoRelativeToCreditsOfMessages) {
  SchedulerEnd sender;
  EXPECT_OK(mail_.SendSignal(7, "first"));
  EXPECT_OK(scheduler_.AnnounceEmptyPart({kMessageLane, /*sequence=*/12, 7, /*number=*/12}, descriptor_));
  EXPECT_OK(mail_.SendSignal(7, "last"));
  DeliverTo(sender);
  EXPECT_THAT(sender.mail.TakeSignals(),
              ElementsAre(FieldsAre(0, "first", 0U), FieldsAre(0, "", 12U), FieldsAre(0, "last", 0U)));
}

TEST_F(CreditSchedulerTest, AbandonCancelsAllTransfers) {
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  EXPECT_OK(scheduler_.Send(ChannelOf(kLane), 0, memory_.data(), kSlice, &owner_));
  scheduler_.Abandon();
  EXPECT_EQ(link_.canceled, 3);
  EXPECT_TRUE(link_.in_flight.empty());
  EXPECT_FALSE(scheduler_.busy());
  EXPECT_TRUE(owner_.done.empty());
  EXPECT_TRUE(MayReceive(Priority::kBulk, kRun, kLane, 4 * kSlice)) << "windows are empty again";
}

TEST_F(CreditSchedulerTest, ReceiveThatCannotBeCanceledStaysPendingUntilItArrives) {
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  const WireLink::RequestId late = link_.in_flight.begin()->first;
  link_.uncancelable = {late};
  scheduler_.Abandon();
  EXPECT_FALSE(scheduler_.busy());
  EXPECT_THAT(scheduler_.AbandonedTransfers().senders, ElementsAre(7));
  link_.Finish(late);
  EXPECT_THAT(scheduler_.AbandonedTransfers().senders, ::testing::IsEmpty());
  EXPECT_TRUE(owner_.done.empty()) << "the owner gets no callback";
}

// MPI reads the buffer of a send until the send is complete.
TEST_F(CreditSchedulerTest, SendThatCannotBeCanceledStaysPendingUntilItIsComplete) {
  EXPECT_OK(scheduler_.Send(ChannelOf(kLane), 0, memory_.data(), kSlice, &owner_));
  const WireLink::RequestId late = link_.in_flight.begin()->first;
  link_.uncancelable = {late};
  scheduler_.Abandon();
  EXPECT_THAT(scheduler_.AbandonedTransfers().receivers, ElementsAre(7));
  EXPECT_THAT(scheduler_.AbandonedTransfers().senders, ::testing::IsEmpty());
  link_.Finish(late);
  EXPECT_THAT(scheduler_.AbandonedTransfers().receivers, ::testing::IsEmpty());
  EXPECT_TRUE(owner_.done.empty()) << "the owner gets no callback";
}

TEST_F(CreditSchedulerTest, SlicesOfAPeerThatHasNotStartedCountInTheLaneWindowOnly) {
  scheduler_.EnableBackgroundWindow();
  const auto receive = [&](bool sender_has_started) {
    CreditScheduler::Slice slice{next_slice_++, memory_.data(), kSlice};
    slice.sender_has_started = sender_has_started;
    EXPECT_OK(scheduler_.Receive(ChannelOf(kLane), WirePhase::kGather, Priority::kBulk, descriptor_,
                                 PartShape::OneDim(10), slice, &owner_));
  };
  scheduler_.RegisterDemand(Priority::kCritical);
  for (int i = 0; i < 4; ++i) receive(/*sender_has_started=*/false);
  EXPECT_EQ(counters_.yielded_peak_bytes, 0);
  EXPECT_FALSE(MayReceive(Priority::kBulk)) << "the lane window is full";
  EXPECT_TRUE(MayReceive(Priority::kBulk, kRun, kOtherLane, 2 * kSlice)) << "the yield window is empty";
  link_.FinishAll();
  Poll();
  receive(/*sender_has_started=*/true);
  EXPECT_EQ(counters_.yielded_peak_bytes, static_cast<int64_t>(kSlice));
  EXPECT_FALSE(MayReceive(Priority::kBulk, kRun, kOtherLane, 2 * kSlice));
}

TEST_F(CreditSchedulerTest, SilentPeersRunAheadInHalfOfTheBudgetUntilTheyStart) {
  const CreditScheduler::Channel channel = ChannelOf(kLane);
  const auto receive = [&](bool sender_has_started) {
    CreditScheduler::Slice slice{next_slice_++, memory_.data(), kSlice};
    slice.sender_has_started = sender_has_started;
    EXPECT_OK(scheduler_.Receive(channel, WirePhase::kGather, Priority::kBulk, descriptor_,
                                 PartShape::OneDim(10), slice, &owner_));
  };
  EXPECT_FALSE(scheduler_.MayRunAhead(Priority::kBulk, kSlice)) << "no rate is known";
  EXPECT_OK(scheduler_.Poll(/*now_ns=*/1'000'000));
  receive(/*sender_has_started=*/true);
  link_.FinishAll();
  EXPECT_OK(scheduler_.Poll(/*now_ns=*/2'000'000));
  // A slice in a millisecond, for 0.6 ms and two of them.
  const int64_t budget = scheduler_.budget_bytes();
  EXPECT_EQ(budget, static_cast<int64_t>(2.6 * kSlice));
  receive(/*sender_has_started=*/false);
  EXPECT_FALSE(scheduler_.MayRunAhead(Priority::kBulk, kSlice));
  EXPECT_TRUE(scheduler_.MayRunAhead(Priority::kBulk, static_cast<size_t>(budget / 2) - kSlice));
  scheduler_.CountInSharedWindows(ChannelOf(kOtherLane));
  EXPECT_FALSE(scheduler_.MayRunAhead(Priority::kBulk, kSlice)) << "another stream has started";
  scheduler_.CountInSharedWindows(channel);
  EXPECT_TRUE(scheduler_.MayRunAhead(Priority::kBulk, kSlice));
  scheduler_.RegisterDemand(Priority::kPrefetch);
  EXPECT_FALSE(scheduler_.MayRunAhead(Priority::kBulk, kSlice)) << "a higher priority wants the wire";
  EXPECT_FALSE(MayReceive(Priority::kBulk, kRun, kOtherLane, 2 * kSlice)) << "it counts in the yield window";
}

TEST_F(CreditSchedulerTest, PeersHaveStartedAnOperationOnceTheirPartialSumsArrive) {
  SchedulerEnd other;
  EXPECT_OK(scheduler_.SendPartial(/*peer=*/1, kLane, /*edge=*/0, descriptor_, "sum"));
  DeliverTo(other);
  EXPECT_TRUE(other.scheduler.HasStarted(ChannelOf(kLane, 0)));
}

TEST_F(CreditSchedulerTest, PeersHaveStartedAMessageUntilItIsForgotten) {
  scheduler_.NoteStarted(ChannelOf(kMessageLane));
  EXPECT_TRUE(scheduler_.HasStarted(ChannelOf(kMessageLane)));
  scheduler_.ForgetReceived(ChannelOf(kMessageLane));
  EXPECT_FALSE(scheduler_.HasStarted(ChannelOf(kMessageLane)));
}

TEST_F(CreditSchedulerTest, PeersHaveStartedAnOperationOnceTheirCreditMessagesArrive) {
  SchedulerEnd other;
  EXPECT_FALSE(other.scheduler.HasStarted(ChannelOf(kLane, 0)));
  EXPECT_OK(scheduler_.AnnounceEmptyPart(ChannelOf(kLane), descriptor_));
  DeliverTo(other);
  EXPECT_TRUE(other.scheduler.HasStarted(ChannelOf(kLane, 0, /*number=*/5)));
  EXPECT_FALSE(other.scheduler.HasStarted(ChannelOf(kOtherLane, 0)));
  other.scheduler.Forget(kLane, 1);
  EXPECT_FALSE(other.scheduler.HasStarted(ChannelOf(kLane, 0)));
}

TEST_F(CreditSchedulerTest, FailedTransferIsNotCanceled) {
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  link_.Finish(link_.in_flight.begin()->first, absl::InternalError("cable cut"));
  EXPECT_THAT(scheduler_.Poll(now_ns_), StatusIs(absl::StatusCode::kInternal, "cable cut"));
  scheduler_.Abandon();
  EXPECT_EQ(link_.canceled, 1);
}

}  // namespace
}  // namespace weft::testing
