#include "src/launch/processes.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::internal {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// A child that runs `prepare` and then waits to be killed. It exists and is prepared when the constructor
// returns.
class WaitingChild {
 public:
  explicit WaitingChild(const std::function<void()>& prepare) {
    std::array<int, 2> ends = {};
    EXPECT_EQ(pipe(ends.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prepare();
      (void)!write(ends[1], "x", 1);
      for (;;) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    close(ends[1]);
  }
  ~WaitingChild() { End(); }
  WaitingChild(const WaitingChild&) = delete;
  WaitingChild& operator=(const WaitingChild&) = delete;
  void End() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(Processes, FindChildrenAndDescendants) {
  const WaitingChild first([] {});
  // The child of `second` ends with `second`.
  const WaitingChild second([] {
    const pid_t parent = getpid();
    if (fork() == 0) {
      while (getppid() == parent) usleep(1000);
      _exit(0);
    }
  });
  EXPECT_THAT(ChildrenOf(getpid()), UnorderedElementsAre(first.pid(), second.pid()));
  const std::vector<pid_t> grandchildren = ChildrenOf(second.pid());
  ASSERT_EQ(grandchildren.size(), 1u);
  EXPECT_THAT(DescendantsOf(getpid()), UnorderedElementsAre(first.pid(), second.pid(), grandchildren[0]));
}

TEST(Processes, DescendantsHaveNotEnded) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_THAT(ChildrenOf(getpid()), Contains(child));
  EXPECT_THAT(DescendantsOf(getpid()), Not(Contains(child)));
  waitpid(child, nullptr, 0);
}

TEST(Processes, FindVariablesByTheirWholeName) {
  ASSERT_TRUE(HasVariable(getpid(), "PATH"));
  EXPECT_FALSE(HasVariable(getpid(), "PAT"));
  EXPECT_FALSE(HasVariable(getpid(), "WEFT_NO_SUCH_VARIABLE"));
}

TEST(Processes, KnowWhichSignalsEndAProcess) {
  const WaitingChild child([] {
    std::signal(SIGUSR1, [](int) {});
    std::signal(SIGHUP, SIG_IGN);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, nullptr);
  });
  EXPECT_TRUE(TakesSignal(child.pid(), SIGUSR1));
  EXPECT_TRUE(TakesSignal(child.pid(), SIGHUP));
  EXPECT_TRUE(TakesSignal(child.pid(), SIGTERM));
  EXPECT_FALSE(TakesSignal(child.pid(), SIGUSR2));
  EXPECT_FALSE(TakesSignal(child.pid(), SIGKILL));
}

TEST(Processes, HaveTheWordsOfTheirCommands) {
  const std::vector<std::string> words = CommandWords(getpid());
  ASSERT_FALSE(words.empty());
  EXPECT_THAT(words.front(), ::testing::EndsWith("launch_test"));
  EXPECT_NE(words.back(), "");
}

// A socket that listens on a port of the loopback interface, or that is connected to one.
int OpenSocket(sockaddr_storage address, socklen_t bytes, bool listens) {
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool ready =
      listens ? bind(fd, generic, bytes) == 0 && listen(fd, 8) == 0 : connect(fd, generic, bytes) == 0;
  EXPECT_TRUE(ready) << std::strerror(errno);
  return fd;
}

TEST(Processes, CountTheConnectionsThatTheyHaveAccepted) {
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_storage address{};
  std::memcpy(&address, &loopback, sizeof(loopback));
  EXPECT_EQ(AcceptedConnections(getpid()), std::nullopt);
  const int listener = OpenSocket(address, sizeof(loopback), /*listens=*/true);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  EXPECT_EQ(AcceptedConnections(getpid()), 0u);
  std::vector<int> sockets = {listener};
  for (size_t connections = 1; connections <= 3; ++connections) {
    sockets.push_back(OpenSocket(address, bytes, /*listens=*/false));
    sockets.push_back(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(AcceptedConnections(getpid()), connections);
  }
  close(sockets.back());
  EXPECT_EQ(AcceptedConnections(getpid()), 2u);
  sockets.pop_back();
  for (const int fd : sockets) close(fd);
}

TEST(Processes, KnowNothingOfProcessesThatHaveEnded) {
  WaitingChild child([] { std::signal(SIGUSR1, SIG_IGN); });
  const pid_t pid = child.pid();
  child.End();
  EXPECT_THAT(ChildrenOf(pid), IsEmpty());
  EXPECT_THAT(DescendantsOf(pid), IsEmpty());
  EXPECT_FALSE(HasVariable(pid, "PATH"));
  EXPECT_FALSE(TakesSignal(pid, SIGUSR1));
  EXPECT_THAT(CommandWords(pid), IsEmpty());
  EXPECT_EQ(AcceptedConnections(pid), std::nullopt);
}

}  // namespace
}  // namespace weft::internal
