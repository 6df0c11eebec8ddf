#include "src/launch/output_relay.h"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <latch>
#include <optional>
#include <string>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>

#include <absl/time/time.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft::internal {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

constexpr uid_t kNobody = 65534;
constexpr unsigned kDeadlineS = 90;

// The launch of a test, whose outputs `reader` reads. `writers` are what mpirun would have.
struct Launch {
  SignalQueue signals{{SIGCHLD, SIGTERM, kLostReaderSignal}};
  Requests requests{/*ranks_are_local=*/true};
  OutputRelay relay;
  int reader = -1;
  std::array<int, 2> writers = {-1, -1};

  void Open() {
    std::signal(SIGPIPE, SIG_IGN);
    ASSERT_OK(relay.Open());
    for (size_t i = 0; i < writers.size(); ++i) writers[i] = dup(relay.outputs()[i]);
    relay.CloseOutputs();
  }
  void EndMpirun() {
    for (int& writer : writers) close(writer);
  }
  std::optional<int> NextSignal(absl::Duration timeout) const { return signals.Next(timeout); }
};

// A foreign pipe is one that another user has made, so that this process may not open it anew.
enum class Kind { kPipe, kForeignPipe, kSocket };

// Runs `body` in a process whose standard output and error are one pipe or socket, and returns its exit code:
// 0, or 1 if an expectation of the body has failed. The message of a failure may wait for a full pipe.
int ExitCodeWith(Kind kind, const std::function<void(Launch&)>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(kDeadlineS);
    std::array<int, 2> ends = {};
    const int failed = kind == Kind::kSocket ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data())
                                             : pipe2(ends.data(), O_CLOEXEC);
    if (failed != 0 || dup2(ends[1], STDOUT_FILENO) < 0 || dup2(ends[1], STDERR_FILENO) < 0) std::_Exit(2);
    close(ends[1]);
    if (kind == Kind::kForeignPipe) {
      if (fchmod(ends[0], 0) != 0 || (geteuid() == 0 && seteuid(kNobody) != 0)) std::_Exit(2);
    }
    {
      Launch launch;
      launch.reader = ends[0];
      body(launch);
    }
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void WriteAll(int descriptor, const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t bytes = write(descriptor, text.data() + written, text.size() - written);
    ASSERT_GT(bytes, 0);
    written += static_cast<size_t>(bytes);
  }
}

std::string ReadAll(int descriptor, size_t size) {
  std::string text(size, '\0');
  size_t end = 0;
  for (ssize_t bytes = 1; end < size && bytes > 0; end += static_cast<size_t>(bytes)) {
    bytes = read(descriptor, text.data() + end, size - end);
  }
  text.resize(end);
  return text;
}

// More than the pipes hold.
std::string LongText() {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i) + "\n";
  return text;
}

class OutputRelayOf : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, OutputRelayOf,
                         ::testing::Values(Kind::kPipe, Kind::kForeignPipe, Kind::kSocket));

TEST_P(OutputRelayOf, PassesOnAllBytesInOrder) {
  EXPECT_EQ(ExitCodeWith(GetParam(),
                         [](Launch& launch) {
                           launch.Open();
                           const std::string text = LongText();
                           std::thread mpirun([&] {
                             WriteAll(launch.writers[0], text);
                             launch.EndMpirun();
                           });
                           EXPECT_EQ(ReadAll(launch.reader, text.size()), text);
                           mpirun.join();
                           launch.relay.Finish(launch.signals, launch.requests);
                           EXPECT_FALSE(launch.relay.lost_output());
                           EXPECT_FALSE(launch.requests.stop_requested());
                         }),
            0);
}

// Returns once WaitsForReader has this value, or at the alarm of the process.
void WaitUntilWaitsForReaderIs(bool value, const OutputRelay& relay) {
  while (relay.WaitsForReader() != value) std::this_thread::yield();
}

TEST_P(OutputRelayOf, SaysWhileItHoldsBytesForItsReader) {
  EXPECT_EQ(ExitCodeWith(GetParam(),
                         [](Launch& launch) {
                           launch.Open();
                           EXPECT_FALSE(launch.relay.WaitsForReader());
                           const std::string text = LongText();
                           std::thread mpirun([&] {
                             WriteAll(launch.writers[0], text);
                             launch.EndMpirun();
                           });
                           WaitUntilWaitsForReaderIs(true, launch.relay);
                           EXPECT_EQ(ReadAll(launch.reader, text.size()).size(), text.size());
                           WaitUntilWaitsForReaderIs(false, launch.relay);
                           mpirun.join();
                           launch.relay.Finish(launch.signals, launch.requests);
                         }),
            0);
}

// Ctrl-S stops the output of a terminal.
TEST(OutputRelay, SaysWhileATerminalTakesNothing) {
  EXPECT_EQ(ExitCodeWith(Kind::kPipe,
                         [](Launch& launch) {
                           const int master = posix_openpt(O_RDWR | O_NOCTTY);
                           ASSERT_EQ(grantpt(master) + unlockpt(master), 0);
                           const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
                           ASSERT_GE(dup2(terminal, STDOUT_FILENO), 0);
                           launch.Open();
                           EXPECT_FALSE(launch.relay.WaitsForReader());
                           ASSERT_EQ(tcflow(terminal, TCOOFF), 0);
                           const bool waits = launch.relay.WaitsForReader();
                           ASSERT_EQ(tcflow(terminal, TCOON), 0);
                           EXPECT_TRUE(waits);
                           EXPECT_FALSE(launch.relay.WaitsForReader());
                         }),
            0);
}

TEST(OutputRelay, WaitsForNobodyOnceItHasFilledThePipeOfItsReader) {
  EXPECT_EQ(ExitCodeWith(Kind::kPipe,
                         [](Launch& launch) {
                           launch.Open();
                           const int capacity = fcntl(launch.reader, F_GETPIPE_SZ);
                           std::thread mpirun([&] {
                             WriteAll(launch.writers[0], std::string(static_cast<size_t>(capacity), 'a'));
                             launch.EndMpirun();
                           });
                           for (int bytes = 0; bytes < capacity;) ioctl(launch.reader, FIONREAD, &bytes);
                           WaitUntilWaitsForReaderIs(false, launch.relay);
                           mpirun.join();
                           launch.relay.Finish(launch.signals, launch.requests);
                         }),
            0);
}

TEST_P(OutputRelayOf, KeepsTheOrderOfOutputAndErrorsOfOneReader) {
  EXPECT_EQ(ExitCodeWith(GetParam(),
                         [](Launch& launch) {
                           launch.Open();
                           std::string text;
                           for (int i = 0; i < 20'000; ++i) text += std::to_string(i) + "\n";
                           std::thread mpirun([&] {
                             for (int i = 0; i < 20'000; ++i)
                               WriteAll(launch.writers[i % 2], std::to_string(i) + "\n");
                             launch.EndMpirun();
                           });
                           EXPECT_TRUE(ReadAll(launch.reader, text.size()) == text);  // A short message.
                           mpirun.join();
                           launch.relay.Finish(launch.signals, launch.requests);
                         }),
            0);
}

TEST_P(OutputRelayOf, TakesWhatComesAfterTheReaderIsLostAndAsksForAStopOnce) {
  EXPECT_EQ(ExitCodeWith(GetParam(),
                         [](Launch& launch) {
                           launch.Open();
                           close(launch.reader);
                           EXPECT_EQ(launch.NextSignal(absl::Seconds(60)),
                                     kLostReaderSignal);  // Without output.
                           for (const int writer : launch.writers) WriteAll(writer, LongText());
                           EXPECT_EQ(launch.NextSignal(absl::ZeroDuration()), std::nullopt);
                           launch.EndMpirun();
                           launch.relay.Finish(launch.signals, launch.requests);
                           EXPECT_TRUE(launch.relay.lost_output());
                         }),
            0);
}

// Both streams share the pipe of a reader that has stopped.
TEST_P(OutputRelayOf, WaitsForAReaderUntilAStopIsRequested) {
  EXPECT_EQ(ExitCodeWith(GetParam(),
                         [](Launch& launch) {
                           launch.Open();
                           std::array<std::thread, 2> writers;
                           for (size_t i = 0; i < writers.size(); ++i) {
                             const int copy = dup(launch.writers[i]);
                             // Returns once the relay has given up, and closed its end of the pipe.
                             writers[i] = std::thread([copy] {
                               const std::string text = LongText();
                               while (write(copy, text.data(), text.size()) > 0) {
                               }
                             });
                           }
                           EXPECT_EQ(ReadAll(launch.reader, 1000).size(), 1000U);
                           kill(getpid(), SIGTERM);
                           launch.relay.Finish(launch.signals, launch.requests);
                           EXPECT_TRUE(launch.requests.user_stops());
                           EXPECT_FALSE(launch.relay.lost_output());
                           for (std::thread& writer : writers) writer.detach();
                         }),
            0);
}

// Finish must not return before the reader has taken more than its pipe and the relay hold.
void ExpectToWaitForReader(Launch& launch) {
  const std::string text = LongText().substr(0, 80'000);
  WriteAll(launch.writers[1], text);
  launch.EndMpirun();
  std::latch begun(1);
  const std::future<void> finish = std::async(std::launch::async, [&] {
    begun.count_down();
    launch.relay.Finish(launch.signals, launch.requests);
  });
  begun.wait();
  ASSERT_EQ(finish.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  EXPECT_EQ(ReadAll(launch.reader, text.size()), text);
}

TEST(OutputRelay, WaitsForTheReaderOfErrorsIfALaunchWithoutRanksHasLostTheOtherReader) {
  EXPECT_EQ(ExitCodeWith(Kind::kPipe,
                         [](Launch& launch) {
                           ASSERT_OK_AND_ASSIGN(auto mpirun, DaemonProcess::Start({"true"}, {}, ""));
                           launch.Open();
                           launch.requests.Add(kLostReaderSignal);
                           launch.requests.Deliver(mpirun, {}, /*started=*/false);
                           EXPECT_TRUE(launch.requests.end_at_once());
                           ExpectToWaitForReader(launch);
                           mpirun.EndDescendants(absl::ZeroDuration());
                         }),
            0);
}

TEST(OutputRelay, WaitsForTheReaderOfErrorsIfAStoppedLaunchLosesTheOtherReader) {
  EXPECT_EQ(ExitCodeWith(Kind::kPipe,
                         [](Launch& launch) {
                           launch.Open();
                           launch.requests.Add(SIGTERM);
                           kill(getpid(), kLostReaderSignal);
                           ExpectToWaitForReader(launch);
                         }),
            0);
}

TEST(OutputRelay, EndsAlthoughAProcessKeepsThePipes) {
  EXPECT_EQ(ExitCodeWith(Kind::kPipe,
                         [](Launch& launch) {
                           launch.Open();
                           WriteAll(launch.writers[0], "text");
                           launch.relay.Finish(launch.signals, launch.requests);
                           EXPECT_EQ(ReadAll(launch.reader, 4), "text");
                         }),
            0);
}

TEST(OutputRelay, NoticesThatANamedPipeHasLostItsReaderBeforeTheStart) {
  const TempFolder folder;
  const std::string path = folder / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ExitCodeWith(Kind::kPipe,
                         [&](Launch& launch) {
                           const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
                           ASSERT_GE(dup2(open(path.c_str(), O_WRONLY), STDOUT_FILENO), 0);
                           close(reader);
                           launch.Open();
                           EXPECT_EQ(launch.NextSignal(absl::Seconds(60)), kLostReaderSignal);
                         }),
            0);
}

TEST(OutputRelay, ReportsBeforeTheStartThatItCannotHaveAThread) {
  EXPECT_EQ(ExitCodeWith(Kind::kPipe,
                         [](Launch& launch) {
                           const rlimit none = {0, 0};
                           ASSERT_EQ(setrlimit(RLIMIT_NPROC, &none), 0);
                           ASSERT_EQ(geteuid() == 0 ? setuid(kNobody) : 0, 0);  // Root has no limit.
                           EXPECT_THAT(launch.relay.Open(), StatusIs(absl::StatusCode::kResourceExhausted,
                                                                     HasSubstr("cannot start a thread")));
                         }),
            0);
}

TEST(OutputRelay, LeavesOutputsThatHaveNoReader) {
  EXPECT_EQ(ExitCodeWith(Kind::kPipe,
                         [](Launch& launch) {
                           ASSERT_GE(dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO), 0);
                           ASSERT_OK(launch.relay.Open());
                           EXPECT_EQ(launch.relay.outputs()[0], STDOUT_FILENO);
                           EXPECT_NE(launch.relay.outputs()[1], STDERR_FILENO);
                           ASSERT_GE(dup2(open("/dev/null", O_WRONLY), STDERR_FILENO), 0);
                           OutputRelay files;
                           ASSERT_OK(files.Open());
                           EXPECT_EQ(files.outputs(), (std::array<int, 2>{STDOUT_FILENO, STDERR_FILENO}));
                         }),
            0);
}

}  // namespace
}  // namespace weft::internal
