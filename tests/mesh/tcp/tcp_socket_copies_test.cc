// Links over TCP while something else holds copies of their sockets, as a forked child does.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/mesh/base/file_handle.h"
#include "src/mesh/tcp/tcp_endpoint.h"
#include "tests/mesh/support/tcp_link_pair.h"
#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using Pair = ::weft::testing::TcpLinkPair;

constexpr int kManyPolls = 1'000'000;

std::vector<int> Descriptors() {
  std::vector<int> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    all.push_back(std::stoi(entry.path().filename()));
  std::erase_if(all, [](int descriptor) { return fcntl(descriptor, F_GETFD) < 0; });  // That of the iterator.
  return all;
}

// Port of this end of a socket; zero if it has none.
int LocalPort(int descriptor) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return 0;
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);  // That of IPv6 is at the same place.
}

// Copies of the listening socket of a link, and of the connections that it has accepted.
std::vector<FileHandle> CopiesOfAccepted(const TcpLink& link) {
  std::vector<FileHandle> copies;
  for (const int descriptor : Descriptors()) {
    if (LocalPort(descriptor) == link.endpoint().port) copies.emplace_back(dup(descriptor));
  }
  return copies;
}

// Number of descriptors that epoll instances of this process watch.
int Watched() {
  int count = 0;
  for (const int descriptor : Descriptors()) {
    std::ifstream info("/proc/self/fdinfo/" + std::to_string(descriptor));
    for (std::string line; std::getline(info, line);) count += line.starts_with("tfd:") ? 1 : 0;
  }
  return count;
}

TEST(TcpSocketCopies, ALinkWatchesNoConnectionThatHasEnded) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Make());
  const int watched_before = Watched();
  ASSERT_OK(pair.second->SendControlMessage(0, "hello"));
  for (int i = 0; i < kManyPolls && Watched() < watched_before + 2; ++i) pair.Poll();
  ASSERT_EQ(Watched(), watched_before + 2);  // The two ends of the connection.
  const std::vector<FileHandle> copies = CopiesOfAccepted(*pair.first);
  ASSERT_EQ(copies.size(), 2);
  pair.second.reset();
  const int expected = watched_before - 1;  // Without the listener of the second link.
  for (int i = 0; i < kManyPolls && Watched() != expected; ++i) ASSERT_OK(pair.first->Poll());
  EXPECT_EQ(Watched(), expected);
}

// The peer has taken a connection before, or takes its first one.
TEST(TcpSocketCopies, AClosedLinkTakesNoMoreMessages) {
  for (const bool is_connected : {false, true}) {
    SCOPED_TRACE(is_connected);
    ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Make());
    if (is_connected) {
      ASSERT_OK(pair.Exchange(1));
    }
    const std::vector<FileHandle> copies = CopiesOfAccepted(*pair.second);
    ASSERT_EQ(copies.size(), is_connected ? 2 : 1);
    pair.second.reset();
    ASSERT_OK(pair.first->SendControlMessage(1, "are you there?"));
    for (int i = 0; i < kManyPolls && pair.first->LostPeers().empty(); ++i) ASSERT_OK(pair.first->Poll());
    ASSERT_THAT(pair.first->LostPeers(), SizeIs(1));
    EXPECT_TRUE(pair.first->LostPeers()[0].may_have_closed);
  }
}

// Two listeners at the same port of two addresses of this host. One is gone, and the queue of the other is
// full: a connection to it is neither made nor refused.
TEST(TcpSocketCopies, AFailedRouteSaysNothingOfTheNextOne) {
  const SystemRuntime runtime;
  ASSERT_OK_AND_ASSIGN(const auto link, TcpLink::Listen(0, "", runtime));
  const FileHandle full(socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_OK_AND_ASSIGN(SocketAddress address, MakeSocketAddress("127.0.0.2", 0));
  ASSERT_EQ(bind(full.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes), 0);
  ASSERT_EQ(listen(full.get(), 0), 0);
  const int port = LocalPort(full.get());
  ASSERT_OK_AND_ASSIGN(address, MakeSocketAddress("127.0.0.2", static_cast<uint16_t>(port)));
  std::vector<FileHandle> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    // Mostly without an end: the backlog has room for one or two.
    static_cast<void>(
        connect(callers.back().get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes));
  }
  const TcpEndpoint peer = {
      "token", "another host", static_cast<uint16_t>(port), {{"a", "127.0.0.1", 8}, {"b", "127.0.0.2", 8}}};
  link->SetPeers({link->endpoint(), peer});
  const std::vector<int> known = Descriptors();
  ASSERT_OK(link->SendControlMessage(1, "hello"));
  std::vector<FileHandle> copies;
  for (const int descriptor : Descriptors()) {
    if (std::find(known.begin(), known.end(), descriptor) == known.end())
      copies.emplace_back(dup(descriptor));
  }
  ASSERT_FALSE(copies.empty());
  for (int i = 0; i < 1000; ++i) ASSERT_OK(link->Poll());
  EXPECT_THAT(link->LostPeers(), IsEmpty());
  EXPECT_TRUE(link->HasUnsentControlMessages());
}

// The process of rank 1: connects to rank 0, starts a worker, which writes its id to the pipe, and waits to
// be killed.
[[noreturn]] void RunRankWithAWorker(const TcpEndpoint& peer, int pipe_end) {
  const SystemRuntime runtime;
  const auto link = TcpLink::Listen(1, "", runtime);
  if (!link.ok()) std::_Exit(1);
  (*link)->SetPeers({peer, (*link)->endpoint()});
  if (!(*link)->SendControlMessage(0, "hello").ok()) std::_Exit(1);
  while ((*link)->HasUnsentControlMessages()) {
    if (!(*link)->Poll().ok()) std::_Exit(1);
  }
  if (fork() == 0) {  // The worker. It has closed its copies by now.
    const pid_t worker = getpid();
    if (write(pipe_end, &worker, sizeof(worker)) < 0) std::_Exit(1);
  }
  alarm(60);  // Ends the process if the test has ended before.
  while (true) pause();
}

TEST(TcpSocketCopies, ADeadRankIsNoticedWhileItsWorkerLives) {
  const SystemRuntime runtime;
  ASSERT_OK_AND_ASSIGN(const auto link, TcpLink::Listen(0, "", runtime));
  link->SetPeers({link->endpoint(), {}});
  std::array<int, 2> ends = {};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const FileHandle reader(ends[0]);
  FileHandle writer(ends[1]);
  const pid_t rank = fork();
  ASSERT_GE(rank, 0);
  if (rank == 0) RunRankWithAWorker(link->endpoint(), writer.get());
  writer = FileHandle();  // Else the read below would not end if the rank has ended.
  std::optional<WireLink::ControlMessage> message;
  for (int i = 0; i < kManyPolls && !message; ++i) {
    ASSERT_OK(link->Poll());
    ASSERT_OK_AND_ASSIGN(message, link->PollControlMessage());
  }
  EXPECT_TRUE(message.has_value());
  pid_t worker = 0;
  ASSERT_EQ(read(reader.get(), &worker, sizeof(worker)), sizeof(worker));
  kill(rank, SIGKILL);
  EXPECT_EQ(waitpid(rank, nullptr, 0), rank);
  for (int i = 0; i < kManyPolls && link->LostPeers().empty(); ++i) ASSERT_OK(link->Poll());
  EXPECT_THAT(link->LostPeers(), SizeIs(1));
  EXPECT_EQ(kill(worker, SIGKILL), 0);
}

}  // namespace
}  // namespace weft::internal
