// Peers that a link over TCP cannot reach, or has lost.
#include <fcntl.h>

#include <sys/resource.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/mesh/base/file_handle.h"
#include "src/mesh/tcp/tcp_link.h"
#include "tests/mesh/support/raw_tcp_peer.h"
#include "tests/mesh/support/tcp_link_pair.h"
#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::RawTcpPeer;
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

// The peer is well: this process has too many files.
TEST(TcpLink, AProcessWithoutDescriptorsBlamesNoPeer) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  std::vector<FileHandle> files;
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few = {64, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  do {
    files.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  } while (files.back().is_open());
  const absl::Status sent = pair.first->SendControlMessage(1, "hello");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(sent, StatusIs(absl::StatusCode::kInternal,
                             AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n"))));
  EXPECT_THAT(pair.first->LostPeers(), IsEmpty());
}

TEST(TcpLink, AProcessWithoutDescriptorsClosesConnectionsWithoutAGreeting) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  const RawTcpPeer first(pair.first->endpoint());
  const RawTcpPeer second(pair.first->endpoint());
  pair.Poll();
  const RawTcpPeer peer(pair.first->endpoint());  // Is accepted once there is no descriptor left.
  peer.WriteFrame(RawTcpPeer::GreetingOf(pair.first->endpoint(), 1));
  peer.WriteFrame(TcpHeader{TcpHeader::Kind::kControl, 0, 0});
  std::vector<FileHandle> files;
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few = {64, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  do {
    files.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  } while (files.back().is_open());
  absl::Status polled;
  absl::StatusOr<std::optional<WireLink::ControlMessage>> control;
  for (int i = 0; i < 1'000'000 && polled.ok() && !(control.ok() && control->has_value()); ++i) {
    polled = pair.first->Poll();
    control = pair.first->PollControlMessage();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_OK(polled);
  EXPECT_TRUE(control.ok() && control->has_value());
  EXPECT_TRUE(second.IsOpen());
  EXPECT_FALSE(first.IsOpen());
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
