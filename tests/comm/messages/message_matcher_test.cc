#include "src/comm/messages/message_matcher.h"

#include <climits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/comm/phases/operation.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Announcement AnnouncementOf(int source, int tag, uint64_t number, uint64_t channel = 1) {
  Announcement announcement{source, {}};
  announcement.signal.tag = tag;
  announcement.signal.channel = channel;
  announcement.signal.number = number;
  return announcement;
}

MessageMatcher::Record ReceiveOf(int source, int tag, uint64_t channel = 1) {
  static uint64_t sequence = 0;
  auto record = std::make_shared<OperationRecord>();
  record->descriptor.sequence = ++sequence;
  record->message = MessageRequest{source, tag, channel};
  return record;
}

TEST(MessageMatcher, MatchesEitherEndFirst) {
  MessageMatcher matcher;
  EXPECT_FALSE(matcher.Announce(AnnouncementOf(2, 7, 11)));
  EXPECT_EQ(matcher.Post(ReceiveOf(2, 7))->signal.number, 11);
  const auto receive = ReceiveOf(2, 7);
  EXPECT_FALSE(matcher.Post(receive));
  EXPECT_THAT(matcher.waiting(), ElementsAre(receive));
  EXPECT_EQ(matcher.Announce(AnnouncementOf(2, 7, 12)), receive);
  EXPECT_THAT(matcher.waiting(), IsEmpty());
}

TEST(MessageMatcher, ComparesChannelTagAndSource) {
  MessageMatcher matcher;
  matcher.Announce(AnnouncementOf(2, INT_MIN, 11));
  EXPECT_FALSE(matcher.Post(ReceiveOf(2, INT_MAX)));
  EXPECT_FALSE(matcher.Post(ReceiveOf(3, INT_MIN)));
  EXPECT_FALSE(matcher.Post(ReceiveOf(2, INT_MIN, /*channel=*/2)));
  EXPECT_TRUE(matcher.Post(ReceiveOf(2, INT_MIN)));
}

TEST(MessageMatcher, KeepsTheOrderOfAnnouncementsAndOfReceives) {
  MessageMatcher matcher;
  for (uint64_t number = 1; number <= 3; ++number) matcher.Announce(AnnouncementOf(2, 0, number));
  for (uint64_t number = 1; number <= 3; ++number)
    EXPECT_EQ(matcher.Post(ReceiveOf(number == 2 ? kAnySource : 2, 0))->signal.number, number);
  const auto first = ReceiveOf(kAnySource, 0);
  const auto other = ReceiveOf(5, 0);
  const auto second = ReceiveOf(4, 0);
  for (const auto& receive : {first, other, second}) EXPECT_FALSE(matcher.Post(receive));
  EXPECT_EQ(matcher.waiting(), (std::vector<MessageMatcher::Record>{first, other, second}));
  EXPECT_EQ(matcher.Announce(AnnouncementOf(4, 0, 9)), first);
  EXPECT_EQ(matcher.Announce(AnnouncementOf(4, 0, 10)), second);
  EXPECT_EQ(matcher.Announce(AnnouncementOf(4, 0, 11)), std::nullopt);
  EXPECT_EQ(matcher.Announce(AnnouncementOf(5, 0, 1)), other);
}

}  // namespace
}  // namespace weft::testing
