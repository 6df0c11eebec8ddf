// Addresses at which another program answers a link over TCP, or none does. See Note [Wrong hosts].
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/mesh/tcp/tcp_endpoint.h"
#include "src/mesh/tcp/tcp_frame.h"
#include "src/mesh/tcp/tcp_link.h"
#include "tests/mesh/support/raw_tcp_peer.h"
#include "tests/mesh/support/set_clock.h"
#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::RawTcpListener;
using ::weft::testing::RawTcpPeer;
using ::weft::testing::SetClock;
using ::weft::testing::StatusIs;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kFewPolls = 1000;
constexpr int kManyPolls = 1'000'000;

// A link that sends a message to rank 1, which may be at two addresses. A program listens at each.
class TcpRoutes : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(link_, TcpLink::Listen(0, "", clock_));
    link_->SetPeers({link_->endpoint(), peer_});
    ASSERT_OK(link_->SendControlMessage(1, "hello"));
  }
  void Poll(int polls) const {
    for (int i = 0; i < polls; ++i) EXPECT_OK(link_->Poll());
  }
  // Polls until the link has connected to this program, and knows that.
  std::unique_ptr<RawTcpPeer> Accept(const RawTcpListener& listener) const {
    for (int i = 0; i < kManyPolls; ++i) {
      auto connection = listener.Accept();
      Poll(connection == nullptr ? 1 : kFewPolls);
      if (connection != nullptr) return connection;
    }
    return nullptr;
  }
  TcpName NameOfPeer() const { return {.name = peer_.PublicName()}; }
  // Answers as the peer does. Returns true if the link then sends its greeting.
  bool TakesGreeting(RawTcpPeer& connection) const {
    connection.WriteFrame(NameOfPeer());
    for (int i = 0; i < kManyPolls && connection.IsOpen() && connection.received().empty(); ++i) Poll(1);
    const TcpGreeting expected = RawTcpPeer::GreetingOf(peer_, 0);
    const std::string_view bytes(reinterpret_cast<const char*>(&expected), sizeof(expected));
    return std::string_view(connection.received()).starts_with(bytes);
  }

  SetClock clock_;
  const RawTcpListener first_{"127.0.0.2"};
  const RawTcpListener second_{"127.0.0.3", first_.port()};
  const TcpEndpoint peer_ = {std::string(sizeof(TcpGreeting::token), 't'),
                             "another host",
                             first_.port(),
                             {{"a", "127.0.0.2", 8}, {"b", "127.0.0.3", 8}}};
  std::unique_ptr<TcpLink> link_;
};

TEST_F(TcpRoutes, AProgramThatClosesTheConnectionIsNotThePeer) {
  ASSERT_NE(Accept(first_), nullptr);
  const auto connection = Accept(second_);
  ASSERT_NE(connection, nullptr);
  EXPECT_TRUE(TakesGreeting(*connection));
  EXPECT_THAT(link_->LostPeers(), IsEmpty());
}

TEST_F(TcpRoutes, AProgramThatSendsAnotherNameGetsNoTokenOfTheJob) {
  const auto wrong = Accept(first_);
  ASSERT_NE(wrong, nullptr);
  TcpName name = NameOfPeer();
  ++name.name;
  wrong->WriteFrame(name);
  const auto connection = Accept(second_);
  ASSERT_NE(connection, nullptr);
  EXPECT_FALSE(wrong->IsOpen());
  EXPECT_EQ(wrong->received(), "");
  EXPECT_TRUE(TakesGreeting(*connection));
  EXPECT_THAT(link_->LostPeers(), IsEmpty());
}

// A name may arrive in parts, like all bytes on a connection.
TEST_F(TcpRoutes, WaitsForTheWholeName) {
  const auto connection = Accept(first_);
  ASSERT_NE(connection, nullptr);
  const TcpName name = NameOfPeer();
  const std::string_view bytes(reinterpret_cast<const char*>(&name), sizeof(name));
  ASSERT_EQ(connection->Write(bytes.substr(0, 9)), 9);
  Poll(kFewPolls);
  EXPECT_TRUE(connection->IsOpen());
  EXPECT_EQ(connection->received(), "");
  ASSERT_EQ(connection->Write(bytes.substr(9)), bytes.size() - 9);
  for (int i = 0; i < kManyPolls && connection->IsOpen() && connection->received().empty(); ++i) Poll(1);
  EXPECT_NE(connection->received(), "");
}

// The peer may only be slow: the link comes back to it.
TEST_F(TcpRoutes, ASilentProgramHasHalfAMinuteBeforeTheNextRouteIsTried) {
  const auto silent = Accept(first_);
  ASSERT_NE(silent, nullptr);
  clock_.now_ns += 29 * kSecond;
  Poll(kFewPolls);
  EXPECT_TRUE(silent->IsOpen());
  EXPECT_EQ(second_.Accept(), nullptr);
  EXPECT_THAT(link_->DescribeUnanswered(), HasSubstr("rank 1 at 127.0.0.2"));
  clock_.now_ns += kSecond;
  const auto second = Accept(second_);
  ASSERT_NE(second, nullptr);
  EXPECT_FALSE(silent->IsOpen());
  EXPECT_THAT(link_->DescribeUnanswered(), HasSubstr("rank 1 at 127.0.0.3"));
  clock_.now_ns += 30 * kSecond;
  const auto again = Accept(first_);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(silent->received(), "");
  EXPECT_TRUE(TakesGreeting(*again));
}

TEST_F(TcpRoutes, TheLastRouteHasAllTheTime) {
  ASSERT_NE(Accept(first_), nullptr);
  const auto silent = Accept(second_);
  ASSERT_NE(silent, nullptr);
  clock_.now_ns += 3600 * kSecond;
  Poll(kFewPolls);
  EXPECT_TRUE(TakesGreeting(*silent));
}

TEST_F(TcpRoutes, TheErrorSaysWhatIsWrongWithEachRoute) {
  ASSERT_NE(Accept(first_), nullptr);
  const auto wrong = Accept(second_);
  ASSERT_NE(wrong, nullptr);
  wrong->WriteFrame(TcpName{.name = 7});
  for (int i = 0; i < kManyPolls && link_->LostPeers().empty(); ++i) Poll(1);
  ASSERT_THAT(link_->LostPeers(), SizeIs(1));
  EXPECT_THAT(link_->LostPeers()[0].cause,
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("cannot connect to 127.0.0.2: "),
                             HasSubstr("; to 127.0.0.3: another program, or a rank of another job, answers"),
                             HasSubstr("WEFT_NETWORK"))));
}

}  // namespace
}  // namespace weft::internal
