#include "src/launch/daemon_process.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/processes.h"
#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

TEST(AgentHost, StandsBeforeTheRemoteCommand) {
  const auto host = [](const std::vector<std::string>& command) {
    return AgentHost(command, "/dev/shm/job").value_or("none");
  };
  const std::string daemon = "PATH=/opt/bin:$PATH ; export PATH ; weft host-daemon /dev/shm/job orted";
  EXPECT_EQ(host({"/usr/bin/ssh", "node2", daemon, "-mca", "ess", "env"}), "node2");
  EXPECT_EQ(host({"ssh", "-p", "22", "me@node2", daemon}), "me@node2");
  EXPECT_EQ(host({"ssh", "node2", "(", "test", "!", "-r", "./.profile", "||", ".", "./.profile;", daemon}),
            "node2");
  EXPECT_EQ(host({"srun", "--nodes=2", "--nodelist=a,b", "weft", "host-daemon", "/dev/shm/job", "orted"}),
            "a,b");
}

TEST(AgentHost, IsOfAgentsOnly) {
  EXPECT_EQ(AgentHost({"sh", "-c", "sleep 9"}, "/dev/shm/job"), std::nullopt);
  EXPECT_EQ(AgentHost({}, "/dev/shm/job"), std::nullopt);
}

// A walk over /proc misses a process whose parent ends in the middle of it, about once in a thousand walks.
TEST(EndDescendants, EndsAProcessThatMovesFromParentToParent) {
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, DaemonProcess::Start({"true"}, {}, ""));
  for (int round = 0; round < 50; ++round) {
    if (fork() == 0) {
      while (fork() == 0) {
      }
      _exit(0);
    }
    daemon.EndDescendants(absl::ZeroDuration());
    EXPECT_THAT(ChildrenOf(getpid()), ::testing::IsEmpty());
  }
}

}  // namespace
}  // namespace weft::internal
