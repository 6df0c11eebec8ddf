#include "src/launch/output_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

// Runs `body(reader)` in a process whose standard output is a pipe, and returns its exit code. `reader` reads
// from the pipe. Failures of the body are its exit code 1.
template <typename Body>
int ExitCodeWithAPipe(const Body& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    std::array<int, 2> ends = {};
    if (pipe2(ends.data(), O_CLOEXEC) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) std::_Exit(2);
    close(ends[1]);
    body(ends[0]);
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

// More than a pipe and the relay hold.
std::string LongText() {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i) + "\n";
  return text;
}

// The process writes to the relay as mpirun would: through a copy of its descriptor.
TEST(OutputRelay, PassesOnAllBytesInOrder) {
  EXPECT_EQ(ExitCodeWithAPipe([](int reader) {
              const SignalQueue signals({SIGCHLD, SIGPIPE});
              OutputRelay relay;
              ASSERT_OK(relay.Open());
              EXPECT_NE(relay.outputs()[0], STDOUT_FILENO);
              const int writer = dup(relay.outputs()[0]);
              relay.Start();
              const std::string text = LongText();
              std::thread source([&] {
                WriteAll(writer, text);
                close(writer);
              });
              EXPECT_EQ(ReadAll(reader, text.size()), text);
              source.join();
              relay.Finish(signals, /*waits=*/true);
              EXPECT_FALSE(relay.lost_output());
            }),
            0);
}

TEST(OutputRelay, TakesWhatComesAfterTheReaderIsLostAndAsksForAStopOnce) {
  EXPECT_EQ(ExitCodeWithAPipe([](int reader) {
              const SignalQueue signals({SIGCHLD, SIGPIPE});
              OutputRelay relay;
              ASSERT_OK(relay.Open());
              const int writer = dup(relay.outputs()[0]);
              relay.Start();
              close(reader);
              EXPECT_EQ(signals.Next(absl::Seconds(60)), SIGPIPE);  // Also without output.
              WriteAll(writer, LongText());
              close(writer);
              relay.Finish(signals, /*waits=*/true);
              EXPECT_TRUE(relay.lost_output());
              EXPECT_EQ(signals.Next(absl::ZeroDuration()), std::nullopt);
            }),
            0);
}

TEST(OutputRelay, DoesNotWaitForAReaderIfItShouldNot) {
  EXPECT_EQ(ExitCodeWithAPipe([](int reader) {
              const SignalQueue signals({SIGCHLD, SIGPIPE});
              OutputRelay relay;
              ASSERT_OK(relay.Open());
              const int writer = dup(relay.outputs()[0]);
              relay.Start();
              // More than the pipe of the reader has room for.
              const auto capacity = static_cast<size_t>(fcntl(reader, F_GETPIPE_SZ));
              WriteAll(writer, std::string(capacity + 100, 'x'));
              close(writer);
              relay.Finish(signals, /*waits=*/false);
              EXPECT_FALSE(relay.lost_output());
              EXPECT_GT(ReadAll(reader, capacity / 2).size(), 0U);
            }),
            0);
}

TEST(OutputRelay, LeavesOutputsThatAreNoPipes) {
  EXPECT_EQ(ExitCodeWithAPipe([](int /*reader*/) {
              ASSERT_GE(dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO), 0);
              OutputRelay relay;
              ASSERT_OK(relay.Open());
              EXPECT_EQ(relay.outputs()[0], STDOUT_FILENO);
            }),
            0);
}

}  // namespace
}  // namespace weft::internal
