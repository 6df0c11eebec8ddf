#include "src/launch/daemon_process.h"

#include <unistd.h>

#include <csignal>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/processes.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

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

// The environment of a process that is ending is empty, too, while the kernel frees its memory. mpirun learns
// of the end only then.
TEST(DaemonProcess, HasARankUntilItHasEndedAlthoughItsEnvironmentIsGone) {
  const TempFolder folder;
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string rank = absl::StrCat("echo >", fifo, "; read line <", fifo, "; exec env -i sh -c 'echo >",
                                        fifo, "; exec sleep 1000'");
  const std::string mpirun = absl::StrCat("OMPI_COMM_WORLD_RANK=0 sh -c \"", rank, "\" & exec sleep 1000");
  ASSERT_OK_AND_ASSIGN(DaemonProcess daemon, DaemonProcess::Start({"sh", "-c", mpirun}, {}, ""));
  ReadFile(fifo);  // The rank has executed its program.
  const std::vector<pid_t> ranks = daemon.Children().ranks;
  ASSERT_THAT(ranks, ::testing::SizeIs(1));
  folder.Write("fifo", "line\n");
  ReadFile(fifo);
  EXPECT_FALSE(HasVariable(ranks[0], "OMPI_COMM_WORLD_RANK"));
  EXPECT_EQ(daemon.Children().ranks, ranks);
  kill(ranks[0], SIGKILL);
  while (!IsZombie(ranks[0])) std::this_thread::yield();
  EXPECT_THAT(daemon.Children().ranks, ::testing::IsEmpty());
  daemon.EndDescendants(absl::ZeroDuration());
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
