// Launches in a process that inherits signals or children of the program before its exec.
#include <unistd.h>

#include <csignal>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/processes.h"
#include "tests/launch/launch_case.h"

namespace weft {
namespace {

using InheritedState = LaunchTest;

// The kernel would reap the children itself, and the launch would never learn that mpirun has ended.
TEST_F(InheritedState, LearnsThatMpirunHasEndedAlthoughSIGCHLDWasIgnored) {
  std::signal(SIGCHLD, SIG_IGN);
  // The launch sends the signal only to ranks that it has seen.
  EXPECT_EQ(LaunchRank("trap 'exit 4' USR1\nkill -USR1 $LAUNCHER\nwhile :; do sleep 0.01; done"), 4);
  std::signal(SIGCHLD, SIG_DFL);
}

// As a shell does: exec weft launch > >(cat).
TEST_F(InheritedState, LeavesInheritedProcessesToThemselves) {
  const pid_t inherited = fork();
  if (inherited == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  folder_.Write("rank", "[ $ATTEMPT = 2 ] || exit 86");
  folder_.Write("after", "setsid sleep 1000 &\n");
  EXPECT_EQ(Launch(options_, {{"PROGRAM"}, [] { return std::vector<std::string>(); }}).value(), 0);
  EXPECT_THAT(internal::DescendantsOf(getpid()), ::testing::ElementsAre(inherited));
  kill(inherited, SIGKILL);
  EXPECT_EQ(waitpid(inherited, nullptr, 0), inherited);
}

}  // namespace
}  // namespace weft
