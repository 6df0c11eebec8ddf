// Peers that a link over TCP cannot reach, or has lost.
#include <fcntl.h>

#include <cstdint>
#include <memory>
#include <sys/resource.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/mesh/base/file_handle.h"
#include "src/mesh/tcp/tcp_link.h"
#include "tests/mesh/support/raw_tcp_peer.h"
#include "tests/mesh/support/set_clock.h"
#include "tests/mesh/support/tcp_link_pair.h"
#include "tests/support/status_matchers.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::RawTcpPeer;
using ::weft::testing::SetClock;
using ::weft::testing::StatusIs;
using Pair = ::weft::testing::TcpLinkPair;

TEST(TcpLink, APeerThatCannotBeReachedIsNamedWithTheRemedy) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Make());
  pair.second.reset();  // Nobody listens at its port any more.
  char byte = 0;
  ASSERT_OK_AND_ASSIGN(const auto send, pair.first->Send(1, 1, &byte, 1));
  absl::StatusOr<bool> done = false;
  for (int i = 0; i < 1'000'000 && done.ok() && !*done; ++i) {
    ASSERT_OK(pair.first->Poll());
    done = pair.first->Test(send);
  }
  EXPECT_THAT(
      done, StatusIs(absl::StatusCode::kInternal,
                     AllOf(HasSubstr("rank 1"), HasSubstr("Connection refused"), HasSubstr("WEFT_NETWORK"))));
}

// Sends a message to rank 1, until the link has noticed that nobody takes it.
absl::Status FindUnreachable(WireLink& link) {
  WEFT_RETURN_IF_ERROR(link.SendControlMessage(1, "are you there?"));
  for (int i = 0; i < 1'000'000 && link.LostPeers().empty(); ++i) WEFT_RETURN_IF_ERROR(link.Poll());
  if (link.LostPeers().size() == 1) return absl::OkStatus();
  return absl::InternalError("the link has not noticed it");
}

// While it lives, this process has no free descriptor.
class DescriptorShortage {
 public:
  DescriptorShortage() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit_), 0);
    const rlimit few = {64, limit_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    do {
      files_.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    } while (files_.back().is_open());
  }
  ~DescriptorShortage() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit_), 0); }
  DescriptorShortage(const DescriptorShortage&) = delete;
  DescriptorShortage& operator=(const DescriptorShortage&) = delete;

 private:
  std::vector<FileHandle> files_;
  rlimit limit_ = {};
};

auto NamesUlimit() {
  return StatusIs(absl::StatusCode::kInternal,
                  AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n")));
}

// The peer is well: this process has too many files.
TEST(TcpLink, AProcessWithoutDescriptorsBlamesNoPeer) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  absl::Status sent;
  {
    const DescriptorShortage shortage;
    sent = pair.first->SendControlMessage(1, "hello");
  }
  EXPECT_THAT(sent, NamesUlimit());
  EXPECT_THAT(pair.first->LostPeers(), IsEmpty());
}

constexpr int64_t kSecond = 1'000'000'000;

// A connection of rank 1 to `link`, and a message on it.
std::unique_ptr<RawTcpPeer> ConnectAsRankOne(const TcpLink& link) {
  auto peer = std::make_unique<RawTcpPeer>(link.endpoint());
  peer->WriteFrame(RawTcpPeer::GreetingOf(link.endpoint(), 1));
  peer->WriteFrame(TcpHeader{TcpHeader::Kind::kControl, 0, 0});
  return peer;
}

// Polls a link of a process without descriptors until it has had that message.
absl::Status PollWithoutDescriptors(TcpLink& link) {
  const DescriptorShortage shortage;
  for (int i = 0; i < 1'000'000; ++i) {
    WEFT_RETURN_IF_ERROR(link.Poll());
    WEFT_ASSIGN_OR_RETURN(const auto message, link.PollControlMessage());
    if (message) return absl::OkStatus();
  }
  return absl::InternalError("the message has not arrived");
}

TEST(TcpLink, AProcessWithoutDescriptorsClosesConnectionsThatSendNoGreetingForHalfAMinute) {
  SetClock clock;
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make(clock));
  RawTcpPeer first(pair.first->endpoint());
  RawTcpPeer second(pair.first->endpoint());
  pair.Poll();
  clock.now_ns += 30 * kSecond;
  pair.Poll();
  EXPECT_TRUE(first.IsOpen());  // As long as there are descriptors.
  const auto peer = ConnectAsRankOne(*pair.first);
  EXPECT_OK(PollWithoutDescriptors(*pair.first));
  EXPECT_FALSE(first.IsOpen());
  EXPECT_TRUE(second.IsOpen());
}

// It may be of a rank, which would not connect again.
TEST(TcpLink, AProcessWithoutDescriptorsKeepsYoungConnectionsWithoutAGreeting) {
  SetClock clock;
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make(clock));
  RawTcpPeer young(pair.first->endpoint());
  pair.Poll();
  clock.now_ns += 29 * kSecond;
  const auto peer = ConnectAsRankOne(*pair.first);
  EXPECT_THAT(PollWithoutDescriptors(*pair.first), NamesUlimit());
  EXPECT_TRUE(young.IsOpen());
}

TEST(TcpLink, AProcessWithoutDescriptorsTakesThatOfAConnectionThatHasEnded) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  RawTcpPeer open(pair.first->endpoint());
  auto ended = std::make_unique<RawTcpPeer>(pair.first->endpoint());
  pair.Poll();
  const auto peer = ConnectAsRankOne(*pair.first);  // Is accepted before the link sees the end.
  ended.reset();
  EXPECT_OK(PollWithoutDescriptors(*pair.first));
  EXPECT_TRUE(open.IsOpen());
}

// The peer closes its link, or dies, before it has connected. Nothing tells which.
TEST(TcpLink, APeerThatHasNeverConnectedMayHaveClosedItsLink) {
  for (const bool was_reached : {false, true}) {
    SCOPED_TRACE(was_reached);
    ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Make());
    if (was_reached) {
      ASSERT_OK(pair.Exchange(1));
    }
    pair.second.reset();
    char byte = 0;
    ASSERT_OK_AND_ASSIGN(const auto receive, pair.first->Receive(1, 1, &byte, 1, WireLink::Length::kExact));
    ASSERT_OK(FindUnreachable(*pair.first));
    EXPECT_TRUE(pair.first->LostPeers()[0].may_have_closed);
    EXPECT_THAT(pair.first->LostPeers()[0].cause,
                StatusIs(absl::StatusCode::kInternal, HasSubstr("the connection to rank 1 was lost")));
    ASSERT_OK_AND_ASSIGN(const bool done, pair.first->Test(receive));
    EXPECT_FALSE(done);
    EXPECT_TRUE(pair.first->Cancel(receive));
  }
}

// The peer was not to be reached any more when its own connection, which says so, was accepted.
TEST(TcpLink, APeerWhoseFarewellArrivesAfterItsLossIsNotLost) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Make());
  pair.second.reset();
  ASSERT_OK(FindUnreachable(*pair.first));
  const RawTcpPeer peer(pair.first->endpoint());
  peer.WriteFrame(RawTcpPeer::GreetingOf(pair.first->endpoint(), 1));
  peer.WriteFrame(TcpHeader{.kind = TcpHeader::Kind::kFarewell, .tag = 0, .bytes = 0});
  for (int i = 0; i < 1'000'000 && !pair.first->LostPeers().empty(); ++i) ASSERT_OK(pair.first->Poll());
  EXPECT_THAT(pair.first->LostPeers(), IsEmpty());
}

// Nobody can be reached at the port of the peer when its connection ends without a farewell.
TEST(TcpLink, APeerWhoseConnectionEndsWithoutAFarewellHasNotClosedItsLink) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Make());
  pair.second.reset();
  char byte = 0;
  ASSERT_OK_AND_ASSIGN(const auto receive, pair.first->Receive(1, 1, &byte, 1, WireLink::Length::kExact));
  ASSERT_OK(FindUnreachable(*pair.first));
  ASSERT_TRUE(pair.first->LostPeers()[0].may_have_closed);
  {
    const RawTcpPeer peer(pair.first->endpoint());
    peer.WriteFrame(RawTcpPeer::GreetingOf(pair.first->endpoint(), 1));
    for (int i = 0; i < 10; ++i) ASSERT_OK(pair.first->Poll());
  }
  absl::StatusOr<bool> done = false;
  for (int i = 0; i < 1'000'000 && done.ok() && !*done; ++i) {
    ASSERT_OK(pair.first->Poll());
    done = pair.first->Test(receive);
  }
  EXPECT_THAT(done, StatusIs(absl::StatusCode::kInternal, HasSubstr("the connection to rank 1 was lost")));
  ASSERT_EQ(pair.first->LostPeers().size(), 1);
  EXPECT_FALSE(pair.first->LostPeers()[0].may_have_closed);
}

}  // namespace
}  // namespace weft::internal
