// Control messages that belong to no transfer, on a fake wire link.
#include "src/comm/links/control_mail.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/links/fake_wire_link.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::IsEmpty;

class ControlMailTest : public ::testing::Test {
 protected:
  // Delivers all messages to rank 7, as sent by rank 0.
  void Deliver() {
    for (const WireLink::ControlMessage& message : link_.sent_messages)
      EXPECT_OK(other_.Handle({0, message.bytes}));
    link_.sent_messages.clear();
  }

  EngineCounters counters_;
  FakeWireLink link_;
  ControlMail mail_{link_, counters_};
  EngineCounters other_counters_;
  FakeWireLink other_link_;
  ControlMail other_{other_link_, other_counters_};  // Of rank 7.
};

TEST_F(ControlMailTest, SignalsAreTakenOnceInOrder) {
  EXPECT_OK(mail_.SendSignal(7, "first"));
  EXPECT_OK(mail_.SendSignal(7, "second"));
  Deliver();
  EXPECT_THAT(other_.TakeSignals(), ElementsAre(FieldsAre(0, "first", 0U), FieldsAre(0, "second", 0U)));
  EXPECT_THAT(other_.TakeSignals(), IsEmpty());
}

TEST_F(ControlMailTest, QuestionsAndAnswersNameTheRankThatSentThem) {
  mail_.Ask({7, {/*lane=*/3, /*sequence=*/9}});
  mail_.Answer(7, {{7, {4, 10}}, /*is_final=*/false, /*late=*/{1, 2}, /*silent=*/{5}});
  Deliver();
  EXPECT_THAT(other_.TakeQuestions(), ElementsAre(FieldsAre(0, FieldsAre(3, 9U))));
  EXPECT_THAT(other_.TakeAnswers(), ElementsAre(FieldsAre(FieldsAre(0, FieldsAre(4, 10U)), false,
                                                          ElementsAre(1, 2), ElementsAre(5))));
  EXPECT_THAT(other_.TakeQuestions(), IsEmpty());
  EXPECT_THAT(other_.TakeAnswers(), IsEmpty());
}

TEST_F(ControlMailTest, CountsMessagesAndTheRanksThatGetAnything) {
  EXPECT_OK(mail_.SendSignal(7, "signal"));
  EXPECT_OK(mail_.Send(7, "bytes"));
  mail_.Ask({6, {3, 9}});
  mail_.CountPeer(5);
  EXPECT_EQ(counters_.control_messages, 3);
  EXPECT_EQ(counters_.wire_peers, 3);
}

TEST_F(ControlMailTest, FirstFailureNoticeIsKept) {
  mail_.BroadcastFailure({5, absl::DataLossError("first")}, {7, 8});
  mail_.BroadcastFailure({5, absl::AbortedError("second")}, {7});
  ASSERT_EQ(link_.sent_messages.size(), 3U);
  EXPECT_EQ(link_.sent_messages[1].peer, 8);
  EXPECT_FALSE(other_.failure());
  Deliver();
  ASSERT_TRUE(other_.failure());
  EXPECT_EQ(other_.failure()->rank, 5) << "the rank that failed, not the one that passes it on";
  EXPECT_THAT(other_.failure()->cause, StatusIs(absl::StatusCode::kDataLoss, "first"));
}

TEST_F(ControlMailTest, LongFailureNoticeIsTruncatedToAControlMessage) {
  mail_.BroadcastFailure({5, absl::DataLossError(std::string(10'000, 'x'))}, {7});
  EXPECT_EQ(link_.sent_messages.at(0).bytes.size(), WireLink::kMaxControlMessageBytes);
}

TEST_F(ControlMailTest, FlushSendsFailureNoticesUntilNoneAreLeft) {
  mail_.BroadcastFailure({5, absl::DataLossError("gone")}, {6, 7});
  link_.unsent_messages = 2;
  EXPECT_TRUE(mail_.Flush());
  EXPECT_TRUE(mail_.Flush());
  EXPECT_EQ(link_.unsent_messages, 0);
  EXPECT_FALSE(mail_.Flush());
}

TEST_F(ControlMailTest, FlushStopsIfTheTransportFails) {
  mail_.BroadcastFailure({5, absl::DataLossError("gone")}, {6, 7});
  link_.unsent_messages = 2;
  link_.transport = absl::InternalError("no route");
  EXPECT_FALSE(mail_.Flush());
}

}  // namespace
}  // namespace weft::testing
