#include "weft/launch/host_daemon.h"

#include <unistd.h>

#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/processes.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::StatusIs;

class HostDaemonTest : public ::testing::Test {
 protected:
  HostDaemonTest() { setenv("FOLDER", folder_.str().c_str(), 1); }
  ~HostDaemonTest() override {
    // RunHostDaemon has ignored these signals.
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE})
      std::signal(signal, SIG_DFL);
  }

  // Runs a shell script in place of orted, with two arguments of mpirun.
  absl::StatusOr<int> Run(const std::string& script) {
    folder_.Write("orted", "#!/bin/sh\n" + script);
    fs::permissions(folder_ / "orted", fs::perms::owner_all);
    return RunHostDaemon({folder_ / "job", {folder_ / "orted", "--daemonize", "-mca"}});
  }

  TempFolder folder_;
};

TEST_F(HostDaemonTest, ReturnsTheExitCodeAndRemovesTheFolder) {
  ASSERT_OK_AND_ASSIGN(const int code,
                       Run("touch \"$OMPI_MCA_orte_tmpdir_base/left\" \"$FOLDER/ran\"; exit 7"));
  EXPECT_EQ(code, 7);
  EXPECT_TRUE(fs::exists(folder_ / "ran"));
  EXPECT_FALSE(fs::exists(folder_ / "job"));
}

TEST_F(HostDaemonTest, ReportsASignalLikeAShell) {
  ASSERT_OK_AND_ASSIGN(const int code, Run("kill -KILL $$"));
  EXPECT_EQ(code, 137);
}

TEST_F(HostDaemonTest, KeepsTheDaemonInTheForeground) {
  ASSERT_OK(Run("echo \"$@\" >\"$FOLDER/arguments\""));
  EXPECT_EQ(ReadFile(folder_ / "arguments"), "-mca\n");
}

TEST_F(HostDaemonTest, EndsTheProcessesThatTheDaemonLeavesBehind) {
  ASSERT_OK(Run("setsid sleep 1000 &"));
  EXPECT_THAT(internal::DescendantsOf(getpid()), IsEmpty());
}

TEST_F(HostDaemonTest, OutlivesTheSignalsOfABatchSystem) {
  ASSERT_OK_AND_ASSIGN(
      const int code, Run("for signal in INT TERM HUP USR1 USR2 PIPE; do kill -$signal $PPID; done; exit 5"));
  EXPECT_EQ(code, 5);
}

TEST_F(HostDaemonTest, NamesAMissingProgram) {
  EXPECT_THAT(RunHostDaemon({folder_ / "job", {"no-such-orted"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no program 'no-such-orted'")));
}

}  // namespace
}  // namespace weft
