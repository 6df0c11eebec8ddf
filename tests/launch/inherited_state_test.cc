// Launches in a process that inherits signals or children of the program before its exec.
#include <csignal>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace weft
