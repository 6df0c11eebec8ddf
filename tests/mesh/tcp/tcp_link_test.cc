// Links over TCP between two ranks of one thread, so that each step of a transfer can be chosen.
#include "src/mesh/tcp/tcp_link.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/socket.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/mesh/tcp/tcp_endpoint.h"
#include "src/mesh/tcp/tcp_frame.h"
#include "tests/mesh/support/raw_tcp_peer.h"
#include "tests/mesh/support/tcp_link_pair.h"
#include "tests/support/status_matchers.h"
#include "weft/core/status.h"
#include "weft/mesh/runtime.h"

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::RawTcpPeer;
using ::weft::testing::StatusIs;
using Pair = ::weft::testing::TcpLinkPair;

// More than the buffers of two sockets hold, so that a transfer stops until the receiver polls.
constexpr size_t kLong = size_t{64} << 20;

bool IsFilledWith(const std::string& bytes, char value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return byte == value; });
}

// A host that is cut off ends neither end of a connection by itself.
TEST(TcpLink, BothEndsOfAConnectionSendProbes) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  ASSERT_OK_AND_ASSIGN(const int64_t received, pair.Exchange(5));
  EXPECT_EQ(received, 5);
  const auto option = [](int descriptor, int level, int name) {
    int value = 0;
    socklen_t bytes = sizeof(value);
    EXPECT_EQ(getsockopt(descriptor, level, name, &value, &bytes), 0);
    return value;
  };
  int ends = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    sockaddr_storage peer = {};
    socklen_t bytes = sizeof(peer);
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) continue;
    if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) continue;
    ++ends;
    EXPECT_EQ(option(descriptor, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE), 30);
    EXPECT_EQ(option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL), 10);
    EXPECT_EQ(option(descriptor, IPPROTO_TCP, TCP_KEEPCNT), 6);
  }
  EXPECT_GE(ends, 2);
}

// The peer sends and closes its link between two polls. The end of the connection to it is an event of the
// second one, like the data.
TEST(TcpLink, APeerThatClosesItsLinkIsNotLost) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Make());
  EXPECT_OK(pair.first->SendControlMessage(1, "hello"));
  EXPECT_OK(pair.second->SendControlMessage(0, "hello"));
  pair.FinishConnections();
  const std::string sent(size_t{1} << 16, 's');
  std::string arrived(sent.size(), '-');
  ASSERT_OK_AND_ASSIGN(const auto receive,
                       pair.first->Receive(1, 1, arrived.data(), arrived.size(), WireLink::Length::kExact));
  ASSERT_OK_AND_ASSIGN(const auto send, pair.second->Send(0, 1, sent.data(), sent.size()));
  bool sent_all = false;
  while (!sent_all) {
    EXPECT_OK(pair.second->Poll());
    ASSERT_OK_AND_ASSIGN(sent_all, pair.second->Test(send));
  }
  pair.second.reset();
  bool done = false;
  for (int poll = 0; !done && poll < 1'000'000; ++poll) {
    EXPECT_OK(pair.first->Poll());
    EXPECT_TRUE(pair.first->LostPeers().empty());
    ASSERT_OK_AND_ASSIGN(done, pair.first->Test(receive));
  }
  EXPECT_EQ(arrived, sent);
  EXPECT_OK(pair.first->Poll());
  EXPECT_TRUE(pair.first->LostPeers().empty());
}

// The data is longer than the kernel takes, but none of it is sent before the last poll of the link, which
// its destructor makes.
TEST(TcpLink, ALinkThatIsClosedWithUnsentDataIsNotLost) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Make());
  const std::string sent(kLong, 's');
  ASSERT_OK(pair.first->SendControlMessage(1, "before"));
  ASSERT_OK(pair.first->Send(1, 1, sent.data(), sent.size()).status());
  ASSERT_OK(pair.first->SendControlMessage(1, "after"));
  ASSERT_OK(pair.second->Poll());  // Answers. The first link has not read that yet.
  ASSERT_NE(pair.first->DescribeUnanswered(), "");
  pair.first.reset();
  absl::StatusOr<bool> done = false;
  char byte = 0;
  for (int i = 0; i < 1'000'000 && done.ok(); ++i) {
    ASSERT_OK(pair.second->Poll());
    ASSERT_TRUE(pair.second->LostPeers().empty());
    ASSERT_OK_AND_ASSIGN(const auto send, pair.second->Send(0, 1, &byte, 1));
    done = pair.second->Test(send);
  }
  EXPECT_THAT(done, StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 0 has closed its link")));
  for (const char* text : {"before", "after"}) {
    ASSERT_OK_AND_ASSIGN(const auto message, pair.second->PollControlMessage());
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->bytes, text);
  }
}

// A message of many 's' from rank 0 to rank 1, of which a part has arrived.
struct LongTransfer {
  std::string sent = std::string(kLong, 's');
  std::string received = std::string(kLong, '-');
  WireLink::RequestId send = 0;
  WireLink::RequestId receive = 0;

  static absl::StatusOr<std::unique_ptr<LongTransfer>> Begin(const Pair& pair) {
    auto transfer = std::make_unique<LongTransfer>();
    std::string& received = transfer->received;
    WEFT_ASSIGN_OR_RETURN(transfer->receive,
                          pair.second->Receive(0, 1, received.data(), kLong, WireLink::Length::kExact));
    WEFT_ASSIGN_OR_RETURN(transfer->send, pair.first->Send(1, 1, transfer->sent.data(), kLong));
    while (received.front() == '-') pair.Poll();
    EXPECT_EQ(received.back(), '-') << "the whole message arrived: make it longer";
    return transfer;
  }
};

TEST(TcpLink, ACanceledReceiveSkipsTheRestOfItsMessage) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  ASSERT_OK_AND_ASSIGN(const auto transfer, LongTransfer::Begin(pair));
  auto& [sent, received, send, receive] = *transfer;
  EXPECT_TRUE(pair.second->Cancel(receive));
  std::fill(received.begin(), received.end(), 'x');
  EXPECT_OK(pair.Finish(*pair.first, send));
  ASSERT_OK_AND_ASSIGN(const int64_t next, pair.Exchange(5));
  EXPECT_EQ(next, 5);
  EXPECT_TRUE(IsFilledWith(received, 'x'));
}

TEST(TcpLink, ACanceledSendStillDeliversWhatItHasBegun) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  ASSERT_OK_AND_ASSIGN(const auto transfer, LongTransfer::Begin(pair));
  auto& [sent, received, send, receive] = *transfer;
  EXPECT_TRUE(pair.first->Cancel(send));
  std::fill(sent.begin(), sent.end(), 'x');
  EXPECT_OK(pair.Finish(*pair.second, receive));
  EXPECT_TRUE(IsFilledWith(received, 's'));
  ASSERT_OK_AND_ASSIGN(const int64_t next, pair.Exchange(5));
  EXPECT_EQ(next, 5);
}

// The first message fills the sockets, so that the second has not begun.
TEST(TcpLink, ACanceledSendThatHasNotBegunIsNotDelivered) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  const std::string first(kLong, '1');
  const std::string second(100, '2');
  ASSERT_OK_AND_ASSIGN(const auto long_send, pair.first->Send(1, 1, first.data(), first.size()));
  ASSERT_OK_AND_ASSIGN(const auto send, pair.first->Send(1, 2, second.data(), second.size()));
  EXPECT_TRUE(pair.first->Cancel(send));
  std::string received(kLong, '-');
  ASSERT_OK_AND_ASSIGN(const auto receive,
                       pair.second->Receive(0, 1, received.data(), kLong, WireLink::Length::kExact));
  ASSERT_OK_AND_ASSIGN(const auto never,
                       pair.second->Receive(0, 2, received.data(), 100, WireLink::Length::kExact));
  EXPECT_OK(pair.Finish(*pair.second, receive));
  EXPECT_OK(pair.Finish(*pair.first, long_send));
  ASSERT_OK_AND_ASSIGN(const int64_t next, pair.Exchange(5));
  EXPECT_EQ(next, 5);
  ASSERT_OK_AND_ASSIGN(const bool done, pair.second->Test(never));
  EXPECT_FALSE(done);
}

// The receive is posted while its message arrives, which goes to memory of the link until then.
TEST(TcpLink, AReceiveTakesAMessageThatHasBegunToArrive) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  std::string sent(kLong, 's');
  sent.back() = 'e';
  ASSERT_OK_AND_ASSIGN(const auto send, pair.first->Send(1, 1, sent.data(), kLong));
  for (int i = 0; i < 10; ++i) pair.Poll();
  ASSERT_OK_AND_ASSIGN(const bool sent_all, pair.first->Test(send));
  ASSERT_FALSE(sent_all);
  std::string received(kLong, '-');
  ASSERT_OK_AND_ASSIGN(const auto receive,
                       pair.second->Receive(0, 1, received.data(), kLong, WireLink::Length::kExact));
  EXPECT_OK(pair.Finish(*pair.second, receive));
  EXPECT_EQ(received, sent);
}

TEST(TcpLink, SendsToAClosedPeerFailAndNameIt) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Make());
  ASSERT_OK(pair.Exchange(1));
  ASSERT_OK(pair.second->SendControlMessage(0, "hello"));
  pair.FinishConnections();
  pair.second.reset();
  absl::StatusOr<bool> done = false;
  char byte = 0;
  for (int i = 0; i < 1'000'000 && done.ok(); ++i) {
    ASSERT_OK(pair.first->Poll());
    ASSERT_OK_AND_ASSIGN(const auto send, pair.first->Send(1, 1, &byte, 1));
    done = pair.first->Test(send);
  }
  EXPECT_THAT(done, StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 1 has closed its link")));
}

// Another program, or a rank of another job, connects to the port of a link.
TEST(TcpLink, IgnoresStrangers) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  ASSERT_OK_AND_ASSIGN(const SocketAddress address,
                       MakeSocketAddress("127.0.0.1", pair.second->endpoint().port));
  std::vector<int> strangers;
  TcpGreeting greeting;
  for (const int64_t rank : {0, -1, 2, 1 << 30}) {
    greeting.rank = rank;
    for (const size_t bytes : {size_t{0}, size_t{10}, sizeof(greeting)}) {
      strangers.push_back(socket(AF_INET, SOCK_STREAM, 0));
      ASSERT_EQ(connect(strangers.back(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes),
                0);
      ASSERT_EQ(send(strangers.back(), &greeting, bytes, 0), static_cast<ssize_t>(bytes));
    }
    std::copy_n(pair.second->endpoint().token.begin(), rank == 0 ? 0 : greeting.token.size(),
                greeting.token.begin());
  }
  pair.Poll();
  ASSERT_OK_AND_ASSIGN(const int64_t received, pair.Exchange(5));
  EXPECT_EQ(received, 5);
  for (const int stranger : strangers) close(stranger);
  pair.Poll();
  ASSERT_OK_AND_ASSIGN(const int64_t after, pair.Exchange(6));
  EXPECT_EQ(after, 6);
}

TEST(TcpLink, ClosesASecondConnectionOfAPeerAndKeepsTheFirst) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  ASSERT_OK(pair.Exchange(1));
  {
    RawTcpPeer second(pair.second->endpoint());
    second.WriteFrame(RawTcpPeer::GreetingOf(pair.second->endpoint(), 0));
    for (int i = 0; i < 1'000'000 && second.IsOpen(); ++i) pair.Poll();
    EXPECT_FALSE(second.IsOpen());
  }
  ASSERT_OK_AND_ASSIGN(const int64_t received, pair.Exchange(2));
  EXPECT_EQ(received, 2);
  EXPECT_TRUE(pair.second->LostPeers().empty());
}

TEST(TcpLink, AMalformedMessageEndsTheConnectionAndNamesThePeer) {
  constexpr auto kUnknown = static_cast<TcpHeader::Kind>(7);
  constexpr uint64_t kTooLong = WireLink::kMaxControlMessageBytes + 1;
  for (const TcpHeader& header :
       {TcpHeader{kUnknown, 0, 0}, TcpHeader{TcpHeader::Kind::kControl, 0, kTooLong},
        TcpHeader{TcpHeader::Kind::kFarewell, 0, 1}, TcpHeader{TcpHeader::Kind::kData, -1, 8}}) {
    ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
    char byte = 0;
    ASSERT_OK_AND_ASSIGN(const auto receive, pair.first->Receive(1, 1, &byte, 1, WireLink::Length::kExact));
    const RawTcpPeer peer(pair.first->endpoint());
    peer.WriteFrame(RawTcpPeer::GreetingOf(pair.first->endpoint(), 1));
    peer.WriteFrame(header);
    absl::StatusOr<bool> done = false;
    for (int i = 0; i < 1'000'000 && done.ok() && !*done; ++i) {
      ASSERT_OK(pair.first->Poll());
      done = pair.first->Test(receive);
    }
    EXPECT_THAT(
        done,
        StatusIs(absl::StatusCode::kInternal,
                 AllOf(HasSubstr("rank 1"),
                       HasSubstr(absl::StrCat("message of kind ", static_cast<int>(header.kind), ", tag ")),
                       HasSubstr("same version of weft"))));
    EXPECT_EQ(pair.first->LostPeers().size(), 1);
    ASSERT_OK_AND_ASSIGN(const auto control, pair.first->PollControlMessage());
    EXPECT_FALSE(control.has_value());
  }
}

// The receive is posted before the message arrives, or after it has arrived in memory of the link.
TEST(TcpLink, AMessageLongerThanItsReceiveFailsItAndIsSkipped) {
  constexpr size_t kReceived = 8;
  const std::string sent(100, 's');
  for (const WireLink::Length length : {WireLink::Length::kExact, WireLink::Length::kAtMost}) {
    for (const bool arrives_first : {false, true}) {
      SCOPED_TRACE(arrives_first);
      ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
      std::string memory(sent.size(), '-');
      const auto receive = [&] { return pair.second->Receive(0, 1, memory.data(), kReceived, length); };
      absl::StatusOr<WireLink::RequestId> request;
      if (!arrives_first) request = receive();
      ASSERT_OK_AND_ASSIGN(const auto send, pair.first->Send(1, 1, sent.data(), sent.size()));
      EXPECT_OK(pair.Finish(*pair.first, send));
      ASSERT_OK_AND_ASSIGN(const int64_t next, pair.Exchange(5));  // The message has arrived before.
      EXPECT_EQ(next, 5);
      if (arrives_first) request = receive();
      ASSERT_OK(request);
      EXPECT_THAT(
          pair.second->Test(*request),
          StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("a receive of "), HasSubstr("8 bytes"),
                                                      HasSubstr("matched a message of 100 bytes"))));
      EXPECT_TRUE(IsFilledWith(memory, '-'));
      EXPECT_TRUE(pair.second->LostPeers().empty());
    }
  }
}

// The rest of the message may never arrive.
TEST(TcpLink, TheLengthOfALongerMessageIsEnoughToFailItsReceive) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  char byte = 0;
  ASSERT_OK_AND_ASSIGN(const auto receive, pair.first->Receive(1, 1, &byte, 1, WireLink::Length::kExact));
  const RawTcpPeer peer(pair.first->endpoint());
  peer.WriteFrame(RawTcpPeer::GreetingOf(pair.first->endpoint(), 1));
  peer.WriteFrame(TcpHeader{TcpHeader::Kind::kData, 1, 2});
  absl::StatusOr<bool> done = false;
  for (int i = 0; i < 1'000'000 && done.ok() && !*done; ++i) {
    ASSERT_OK(pair.first->Poll());
    done = pair.first->Test(receive);
  }
  EXPECT_THAT(done, StatusIs(absl::StatusCode::kInternal, HasSubstr("matched a message of 2 bytes")));
}

// The header of a message that no rank expects, and that never arrives.
TEST(TcpLink, AllocatesNothingForAMessageBeforeItsBytesArrive) {
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Make());
  const RawTcpPeer peer(pair.first->endpoint());
  peer.WriteFrame(RawTcpPeer::GreetingOf(pair.first->endpoint(), 1));
  peer.WriteFrame(TcpHeader{TcpHeader::Kind::kControl, 0, 0});
  peer.WriteFrame(TcpHeader{TcpHeader::Kind::kData, 1, uint64_t{1} << 62});
  absl::StatusOr<std::optional<WireLink::ControlMessage>> control;
  for (int i = 0; i < 1'000'000 && !(control.ok() && control->has_value()); ++i) {
    ASSERT_OK(pair.first->Poll());
    control = pair.first->PollControlMessage();
  }
  EXPECT_TRUE(control.ok() && control->has_value());
  pair.Poll();
  EXPECT_TRUE(pair.first->LostPeers().empty());
}

// A listener whose queue is full drops connections, as a firewall does.
TEST(TcpLink, DescribesConnectionsWithoutAnAnswer) {
  const SystemRuntime runtime;
  ASSERT_OK_AND_ASSIGN(const auto link, TcpLink::Listen(0, "", runtime));
  const int full = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_OK_AND_ASSIGN(SocketAddress address, MakeSocketAddress("127.0.0.1", 0));
  ASSERT_EQ(bind(full, reinterpret_cast<sockaddr*>(&address.storage), address.bytes), 0);
  ASSERT_EQ(listen(full, 0), 0);
  socklen_t bytes = sizeof(address.storage);
  ASSERT_EQ(getsockname(full, reinterpret_cast<sockaddr*>(&address.storage), &bytes), 0);
  TcpEndpoint silent = link->endpoint();
  silent.port = ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  const RawTcpPeer first(silent);
  link->SetPeers({link->endpoint(), silent});
  EXPECT_EQ(link->DescribeUnanswered(), "");
  ASSERT_OK(link->SendControlMessage(1, "lost"));
  ASSERT_OK(link->Poll());
  EXPECT_THAT(link->DescribeUnanswered(),
              AllOf(HasSubstr("no answer yet to a connection to rank 1 at 127.0.0.1:"),
                    HasSubstr("WEFT_NETWORK"), HasSubstr("WEFT_TRANSPORT=mpi")));
  close(full);
}

}  // namespace
}  // namespace weft::internal
