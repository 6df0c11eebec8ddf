// Windows, credits and words, against a wire whose other end is the test.
#include "src/comm/links/credit_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/fake_wire_link.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kLane = 2;
constexpr int kOtherLane = 3;
constexpr size_t kSlice = 100;

class Owner final : public WireOwner {
 public:
  void OnWireDone(int64_t slice) override { done.push_back(slice); }
  std::vector<int64_t> done;
};

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

  bool May(Priority priority, bool head = false, int lane = kLane, size_t bytes = kSlice) const {
    return desk_.MayReceive(lane, WirePhase::kGather, priority, bytes, head);
  }
  void Receive(Priority priority, int lane = kLane, WirePhase phase = WirePhase::kGather) {
    const int64_t slice = next_slice_++;
    EXPECT_OK(desk_.Receive(ChannelOf(lane), phase, priority, descriptor_, PartShape::Run(10),
                            {slice, memory_.data(), kSlice}, &owner_));
  }
  bool Poll() {
    const auto advanced = desk_.Poll();
    EXPECT_OK(advanced);
    return advanced.ok() && *advanced;
  }
  // What this desk told rank 7 arrives at a desk of rank 7, as from rank 0.
  void DeliverTo(CreditScheduler& other, FakeWireLink& other_link) {
    for (const WireLink::Note& note : link_.sent_notes) other_link.notes.push_back({0, note.bytes});
    link_.sent_notes.clear();
    EXPECT_OK(other.Poll());
  }

  const EngineOptions options_ = Options();
  EngineCounters counters_;
  FakeWireLink link_;
  CreditScheduler desk_{link_, options_, counters_};
  Descriptor descriptor_;
  Owner owner_;
  std::vector<std::byte> memory_{kSlice};
  int64_t next_slice_ = 0;
};

TEST_F(CreditSchedulerTest, LaneKeepsToItsWindow) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(May(Priority::kBulk));
    Receive(Priority::kBulk);
  }
  EXPECT_FALSE(May(Priority::kBulk));
  EXPECT_FALSE(May(Priority::kPrefetch));
  EXPECT_TRUE(May(Priority::kBulk, false, kOtherLane));
  link_.Finish(link_.under_way.begin()->first);
  EXPECT_TRUE(Poll());
  EXPECT_THAT(owner_.done, ElementsAre(0));
  EXPECT_TRUE(May(Priority::kBulk));
}

TEST_F(CreditSchedulerTest, LaneThatSomebodyWaitsForHasTwiceTheWindow) {
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(May(Priority::kCritical));
    Receive(Priority::kCritical);
  }
  EXPECT_FALSE(May(Priority::kCritical));
}

TEST_F(CreditSchedulerTest, WhatNobodyWaitsForKeepsTheWireShortOnceExchangesAreExpected) {
  const auto fill = [&] {
    Receive(Priority::kReduce, kLane);
    Receive(Priority::kPrefetch, kOtherLane);
    Receive(Priority::kBulk, kOtherLane);
  };
  fill();
  EXPECT_TRUE(May(Priority::kReduce));
  desk_.ExpectExchanges();
  EXPECT_FALSE(May(Priority::kReduce));
  EXPECT_FALSE(May(Priority::kPrefetch, false, /*lane=*/9));
  EXPECT_TRUE(May(Priority::kCritical));
  EXPECT_TRUE(May(Priority::kBulk, /*head=*/true, /*lane=*/9)) << "the guarantee of one slice holds";
  link_.Finish(link_.under_way.begin()->first);
  Poll();
  EXPECT_TRUE(May(Priority::kReduce));
}

TEST_F(CreditSchedulerTest, PhasesOfALaneHaveWindowsOfTheirOwn) {
  for (int i = 0; i < 4; ++i) Receive(Priority::kBulk, kLane, WirePhase::kReduce);
  EXPECT_FALSE(desk_.MayReceive(kLane, WirePhase::kReduce, Priority::kBulk, kSlice, false));
  EXPECT_TRUE(desk_.MayReceive(kLane, WirePhase::kGather, Priority::kBulk, kSlice, false));
}

TEST_F(CreditSchedulerTest, HeadOfALaneMayAlwaysHaveOneSliceUnderWay) {
  constexpr size_t kHuge = 100 * kSlice;
  EXPECT_FALSE(May(Priority::kBulk, /*head=*/false, kLane, kHuge));
  EXPECT_TRUE(May(Priority::kBulk, /*head=*/true, kLane, kHuge));
  Receive(Priority::kBulk);
  EXPECT_FALSE(May(Priority::kBulk, /*head=*/true, kLane, kHuge));
  EXPECT_TRUE(May(Priority::kBulk, /*head=*/true, kOtherLane, kHuge));
}

TEST_F(CreditSchedulerTest, LowerTrafficTogetherYieldsWhileSomethingHigherWants) {
  Receive(Priority::kReduce, kLane);
  Receive(Priority::kBulk, kOtherLane);
  EXPECT_TRUE(May(Priority::kBulk));
  desk_.Want(Priority::kPrefetch);
  EXPECT_FALSE(May(Priority::kBulk));
  EXPECT_FALSE(May(Priority::kReduce, false, kOtherLane));
  EXPECT_TRUE(May(Priority::kPrefetch));
  EXPECT_TRUE(May(Priority::kCritical));
  EXPECT_TRUE(May(Priority::kBulk, /*head=*/true, /*lane=*/9)) << "the guarantee of one slice holds";
}

TEST_F(CreditSchedulerTest, WishCountsUntilTheTurnAfterItIsOver) {
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  desk_.Want(Priority::kCritical);
  EXPECT_FALSE(May(Priority::kBulk));
  Poll();
  EXPECT_FALSE(May(Priority::kBulk)) << "lanes that step first in the next turn still see it";
  Poll();
  EXPECT_TRUE(May(Priority::kBulk));
}

TEST_F(CreditSchedulerTest, ReceiveIsPostedBeforeItsCreditIsSent) {
  Receive(Priority::kBulk);
  ASSERT_EQ(link_.under_way.size(), 1U);
  EXPECT_FALSE(link_.under_way.begin()->second.send);
  EXPECT_EQ(link_.under_way.begin()->second.peer, 7);
  EXPECT_EQ(link_.under_way.begin()->second.tag, kLane * CreditScheduler::kChannels + 1);
  ASSERT_EQ(link_.sent_notes.size(), 1U);
  EXPECT_EQ(link_.sent_notes[0].peer, 7);
  EXPECT_EQ(counters_.wire_bytes, 0) << "received bytes are the sender's to count";
}

TEST_F(CreditSchedulerTest, CreditsAddUpAtTheSender) {
  FakeWireLink sender_link;
  EngineCounters sender_counters;
  CreditScheduler sender(sender_link, options_, sender_counters);
  EXPECT_FALSE(sender.CreditOf(ChannelOf(kLane, 0)));
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  DeliverTo(sender, sender_link);
  const auto credit = sender.CreditOf(ChannelOf(kLane, 0));
  ASSERT_TRUE(credit);
  EXPECT_EQ(credit->slices, 2);
  EXPECT_EQ(credit->part, PartShape::Run(10));
  EXPECT_FALSE(sender.CreditOf(ChannelOf(kLane, 0, 2))) << "of another channel";

  EXPECT_OK(sender.Send(ChannelOf(kLane, 0), 0, memory_.data(), kSlice, &owner_));
  EXPECT_TRUE(sender.busy());
  EXPECT_EQ(sender_counters.wire_bytes, static_cast<int64_t>(kSlice));
  EXPECT_TRUE(sender_link.under_way.begin()->second.send);
  EXPECT_EQ(sender_link.under_way.begin()->second.tag, link_.under_way.begin()->second.tag);
  sender_link.FinishAll();
  EXPECT_OK(sender.Poll());
  EXPECT_FALSE(sender.busy());

  sender.Forget(kLane, 1);
  EXPECT_FALSE(sender.CreditOf(ChannelOf(kLane, 0)));
}

TEST_F(CreditSchedulerTest, ExpectingNothingIsHeard) {
  FakeWireLink sender_link;
  EngineCounters sender_counters;
  CreditScheduler sender(sender_link, options_, sender_counters);
  EXPECT_OK(desk_.ExpectNothing(ChannelOf(kLane), descriptor_));
  EXPECT_TRUE(link_.under_way.empty());
  DeliverTo(sender, sender_link);
  const auto credit = sender.CreditOf(ChannelOf(kLane, 0));
  ASSERT_TRUE(credit);
  EXPECT_EQ(credit->slices, 0);
  EXPECT_EQ(credit->part, PartShape());
}

TEST_F(CreditSchedulerTest, CreditsShowWhoRunsSomethingElse) {
  FakeWireLink sender_link;
  EngineCounters sender_counters;
  CreditScheduler sender(sender_link, options_, sender_counters);
  Receive(Priority::kBulk);
  DeliverTo(sender, sender_link);
  EXPECT_FALSE(sender.FindMismatch(kLane, descriptor_));
  Descriptor mine = descriptor_;
  mine.identity = 5;
  const auto mismatch = sender.FindMismatch(kLane, mine);
  ASSERT_TRUE(mismatch);
  EXPECT_EQ(mismatch->first, 0);
  EXPECT_TRUE(Agree(mismatch->second, descriptor_));
  mine.sequence = 2;
  EXPECT_FALSE(sender.FindMismatch(kLane, mine)) << "of another place of the lane";
}

TEST_F(CreditSchedulerTest, FirstWordThatComesInStays) {
  FakeWireLink other_link;
  EngineCounters other_counters;
  CreditScheduler other(other_link, options_, other_counters);
  desk_.BroadcastFailure(absl::DataLossError("first"), {7, 8});
  desk_.BroadcastFailure(absl::AbortedError("second"), {7});
  ASSERT_EQ(link_.sent_notes.size(), 3U);
  EXPECT_EQ(link_.sent_notes[1].peer, 8);
  DeliverTo(other, other_link);
  ASSERT_TRUE(other.word());
  EXPECT_EQ(other.word()->rank, 0);
  EXPECT_THAT(other.word()->cause, StatusIs(absl::StatusCode::kDataLoss, "first"));
}

TEST_F(CreditSchedulerTest, LongWordIsCutToANote) {
  desk_.BroadcastFailure(absl::DataLossError(std::string(10'000, 'x')), {7});
  EXPECT_LE(link_.sent_notes.at(0).bytes.size(), WireLink::kMaxNoteBytes);
}

TEST_F(CreditSchedulerTest, BadNewsIsSentOnUntilAllOfItHasLeft) {
  desk_.BroadcastFailure(absl::DataLossError("gone"), {6, 7});
  desk_.Abandon();
  link_.notes_unsent = 2;
  EXPECT_TRUE(desk_.SendOn());
  EXPECT_TRUE(desk_.SendOn());
  EXPECT_EQ(link_.notes_unsent, 0);
  EXPECT_FALSE(desk_.SendOn());
}

TEST_F(CreditSchedulerTest, BadNewsIsGivenUpWhereTheTransportFails) {
  desk_.BroadcastFailure(absl::DataLossError("gone"), {6, 7});
  link_.notes_unsent = 2;
  link_.transport = absl::InternalError("no route");
  EXPECT_FALSE(desk_.SendOn());
}

TEST_F(CreditSchedulerTest, NoteOfAnotherVersionIsAnError) {
  link_.notes.push_back({4, std::string(1, '\0')});
  EXPECT_THAT(desk_.Poll(), StatusIs(absl::StatusCode::kInternal, HasSubstr("from rank 4")));
}

TEST_F(CreditSchedulerTest, GivingUpCancelsReceivesButForgetsSends) {
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  EXPECT_OK(desk_.Send(ChannelOf(kLane), 0, memory_.data(), kSlice, &owner_));
  desk_.Abandon();
  EXPECT_EQ(link_.cancelled, 2);
  EXPECT_FALSE(desk_.busy());
  EXPECT_TRUE(owner_.done.empty());
  EXPECT_TRUE(May(Priority::kBulk, false, kLane, 4 * kSlice)) << "windows are empty again";
}

TEST_F(CreditSchedulerTest, ReceiveThatIsTooLateToGiveUpArrives) {
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  const WireLink::RequestId late = link_.under_way.begin()->first;
  link_.arriving = {late};
  desk_.Abandon();
  EXPECT_FALSE(desk_.busy());
  EXPECT_THAT(desk_.ArrivingFrom(), ElementsAre(7));
  link_.Finish(late);
  EXPECT_THAT(desk_.ArrivingFrom(), ::testing::IsEmpty());
  EXPECT_TRUE(owner_.done.empty()) << "its owner is not told";
}

TEST_F(CreditSchedulerTest, TransferThatFailsIsNotCancelledAfterwards) {
  Receive(Priority::kBulk);
  Receive(Priority::kBulk);
  link_.Finish(link_.under_way.begin()->first, absl::InternalError("cable cut"));
  EXPECT_THAT(desk_.Poll(), StatusIs(absl::StatusCode::kInternal, "cable cut"));
  desk_.Abandon();
  EXPECT_EQ(link_.cancelled, 1);
}

}  // namespace
}  // namespace weft::testing
