// Launches whose standard output and error are a pipe, with a script in place of mpirun.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "weft/launch/launch.h"

namespace weft {
namespace {

constexpr unsigned kDeadlineS = 60;

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
  }

  // The exit code of a launch in a process of its own. `after`: what mpirun does after the end of its rank.
  // `read`: is called meanwhile with the read end of the pipe that is the output of the launch.
  int ExitCodeOf(const std::string& rank, const std::string& after, const std::function<void(int)>& read) {
    folder_.Write("rank", rank);
    folder_.Write("after", after);
    std::array<int, 2> ends = {};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(kDeadlineS);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      for (const int end : ends) close(end);
      std::_Exit(Launch(options_, {{"PROGRAM"}, {}}).value_or(-1));
    }
    close(ends[1]);
    read(ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  TempFolder folder_;
  LaunchOptions options_;
};

TEST_F(LaunchOutput, HasTheCodeOfARunThatHasEndedBeforeItsReaderLeft) {
  const auto read_a_line_and_leave = [](int reader) {
    for (char byte = 0; byte != '\n';) ASSERT_EQ(read(reader, &byte, 1), 1);
    close(reader);
  };
  // In this second the launch learns of the loss, and must not end mpirun.
  EXPECT_EQ(ExitCodeOf(kSeenRank, "echo end; sleep 1", read_a_line_and_leave), 4);
}

}  // namespace
}  // namespace weft
