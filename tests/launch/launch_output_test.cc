// Launches whose standard output and error are a pipe, with a script in place of mpirun.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <sys/wait.h>

#include <climits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "weft/launch/launch.h"

namespace weft {
namespace {

constexpr unsigned kDeadlineS = 90;

// $FOLDER has the files of the test, $LAUNCHER is the process that calls Launch.
constexpr const char* kMpirun = R"(#!/bin/sh
LAUNCHER=$PPID; export LAUNCHER
OMPI_COMM_WORLD_RANK=0 sh "$FOLDER/rank" &
wait $!
code=$?
. "$FOLDER/after"
exit $code
)";

// Ends with exit code 4 once the launch has seen it: the launch sends the signal only to ranks that it knows.
constexpr const char* kSeenRank = "trap 'exit 4' USR1\nkill -USR1 $LAUNCHER\nwhile :; do sleep 0.01; done";

class LaunchOutput : public ::testing::Test {
 protected:
  LaunchOutput() {
    setenv("FOLDER", folder_.str().c_str(), 1);
    options_.mpirun = folder_.Write("mpirun", kMpirun);
    std::filesystem::permissions(options_.mpirun, std::filesystem::perms::owner_all);
    options_.max_restarts = 0;
    EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0);
  }
  ~LaunchOutput() override {
    for (const int end : ends_) close(end);
  }

  // The exit code of a launch in a process of its own. `after`: what mpirun does after the end of its rank.
  // `meanwhile` is called while the launch runs.
  int ExitCodeOf(const std::string& rank, const std::string& after, const std::function<void()>& meanwhile) {
    folder_.Write("rank", rank);
    folder_.Write("after", after);
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(kDeadlineS);
      dup2(ends_[1], STDOUT_FILENO);
      dup2(ends_[1], STDERR_FILENO);
      for (const int end : ends_) close(end);
      std::_Exit(Launch(options_, {{"PROGRAM"}, {}}).value_or(-1));
    }
    CloseEnd(1);
    meanwhile();
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // Returns after the first line, or the end of the output.
  void ReadALine() const {
    for (char byte = 0; byte != '\n' && read(ends_[0], &byte, 1) == 1;) {
    }
  }

  // Leaves no room in the pipe.
  void Fill() const {
    const std::string bytes(PIPE_BUF, '.');
    fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    while (write(ends_[1], bytes.data(), bytes.size()) > 0) {
    }
    fcntl(ends_[1], F_SETFL, 0);
  }

  void CloseEnd(size_t end) {
    close(ends_[end]);
    ends_[end] = -1;
  }

  TempFolder folder_;
  LaunchOptions options_;
  std::array<int, 2> ends_ = {};  // Of the pipe that is the output of the launch.
};

TEST_F(LaunchOutput, HasTheCodeOfARunThatHasEndedBeforeItsReaderLeft) {
  const auto read_a_line_and_leave = [this] {
    ReadALine();
    CloseEnd(0);
  };
  // In this second the launch learns of the loss, and must not end mpirun.
  EXPECT_EQ(ExitCodeOf(kSeenRank, "echo end; sleep 1", read_a_line_and_leave), 4);
}

TEST_F(LaunchOutput, EndsAlthoughNobodyTakesItsMessages) {
  Fill();
  EXPECT_EQ(ExitCodeOf("exit 86", "", [] {}), 86);
}

}  // namespace
}  // namespace weft
