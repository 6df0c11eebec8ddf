// Launches from their start to their exit code: restarts, requests, deadlines and cleanup.
#include "weft/launch/launch.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/processes.h"
#include "src/launch/supervisor.h"
#include "tests/launch/launch_case.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::StatusIs;

// mpirun with an agent, whose daemon has connected to it, unless $FOLDER/silent exists. It passes SIGUSR1 on
// to the agent.
constexpr const char* kMpirunWithAHost = R"(#!/usr/bin/env python3
import os, signal, socket, subprocess, time
folder, job = os.environ["FOLDER"], os.environ.get("OMPI_MCA_orte_tmpdir_base", "the-folder")
for name, line in ("calls", "call"), ("folders", job):
    with open(f"{folder}/{name}", "a") as file:
        print(line, file=file)
listener = socket.create_server(("127.0.0.1", 0))
if not os.path.exists(folder + "/silent"):
    daemon = socket.create_connection(listener.getsockname())
    connection, _ = listener.accept()
saves = []
signal.signal(signal.SIGUSR1, lambda number, frame: saves.append(number))
signal.signal(signal.SIGUSR2, lambda number, frame: os._exit(7))
agent = subprocess.Popen([folder + "/agent", "far", f"weft host-daemon {job} orted"])
while True:
    time.sleep(0.01)
    for number in saves:
        agent.send_signal(number)
)";

TEST_F(LaunchTest, RestartsFromTheCheckpointUntilTheProgramSucceeds) {
  EXPECT_EQ(LaunchWithCodes({"137", "86", "1", "0"}), 0);
  ASSERT_THAT(Calls(), SizeIs(4));
  EXPECT_THAT(Calls()[0], EndsWith("PROGRAM train"));
  for (size_t i = 1; i < 4; ++i) EXPECT_THAT(Calls()[i], EndsWith("PROGRAM train --resume auto"));
}

TEST_F(LaunchTest, ReturnsDocumentedExitCodesAtOnce) {
  for (const char* code : {"0", "2", "3", "4", "130"}) {
    std::filesystem::remove(folder_ / "calls");
    EXPECT_EQ(LaunchWithCodes({code}), std::atoi(code));
    EXPECT_THAT(Calls(), SizeIs(1)) << code;
  }
}

TEST_F(LaunchTest, GivesUpAfterTheLastRestart) {
  options_.max_restarts = 2;
  EXPECT_EQ(LaunchRank("exit 86"), 86);
  EXPECT_THAT(Calls(), SizeIs(3));
}

TEST_F(LaunchTest, DoesNotRestartIfThatIsNotAllowed) {
  options_.max_restarts = 0;
  EXPECT_EQ(LaunchRank("kill -KILL $$"), 137);
  EXPECT_THAT(Calls(), SizeIs(1));
}

TEST_F(LaunchTest, RestartsIfMpirunItselfIsKilled) {
  EXPECT_EQ(LaunchRank("[ $ATTEMPT = 1 ] || exit 0\nkill -KILL $PPID\nsleep 1000"), 0);
  EXPECT_THAT(Calls(), SizeIs(2));
}

TEST_F(LaunchTest, DoesNotRepeatAFirstAttemptThatStartsNoRank) {
  options_.hosts.clear();
  for (const int code : {1, 243}) {  // No slots, and no ssh.
    std::filesystem::remove(folder_ / "calls");
    folder_.Write("before", absl::StrCat("echo no ranks; exit ", code));
    EXPECT_EQ(LaunchRank(""), code);
    EXPECT_THAT(Calls(), SizeIs(1)) << code;
  }
}

TEST_F(LaunchTest, DoesNotRestartWithoutArgumentsForIt) {
  folder_.Write("rank", "kill -KILL $$");
  const RankProgram program = {{"PROGRAM", "train"}, [] { return absl::NotFoundError("no such folder"); }};
  EXPECT_EQ(Launch(options_, program).value(), 137);
  EXPECT_THAT(Calls(), SizeIs(1));
}

TEST_F(LaunchTest, GivesEachAttemptAFolderOfItsOwn) {
  EXPECT_EQ(LaunchWithCodes({"86", "0"}), 0);
  const std::vector<std::string> folders = Lines("folders");
  ASSERT_THAT(folders, SizeIs(2));
  EXPECT_NE(folders[0], folders[1]);
}

// Runs one test of this program in a copy of it. `then`: the rest of the shell's command.
int RunTestInCopy(const std::string& copy, const std::string& test, const std::string& then = ">&2") {
  std::filesystem::copy_file("/proc/self/exe", copy);
  return std::system(absl::StrCat("'", copy, "' --gtest_filter=LaunchTest.", test, " ", then).c_str());
}

TEST_F(LaunchTest, RestartsAlthoughItsProgramHasBeenReplaced) {
  const ::weft::testing::ScopedVariable replaced("REPLACED", (folder_ / "copy").c_str());
  EXPECT_EQ(RunTestInCopy(folder_ / "copy", "RestartsFromTheCheckpointUntilTheProgramSucceeds"), 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "copy"));
}

TEST_F(LaunchTest, NeedsAPathWithoutSpacesOnlyForOtherHosts) {
  EXPECT_EQ(RunTestInCopy(folder_ / "a b", "HoldsASaveRequestBackUntilARankTakesIt"), 0);
  EXPECT_EQ(RunTestInCopy(folder_ / "c d", "GivesEachAttemptAFolderOfItsOwn",
                          "2>&1 | grep -q 'must have no spaces'"),
            0);
}

TEST_F(LaunchTest, EndsTheProcessesThatMpirunLeavesBehind) {
  folder_.Write("after", "setsid sleep 1000 &\n");
  EXPECT_EQ(LaunchRank("exit 0"), 0);  // LaunchRank checks that no process is left.
}

TEST_F(LaunchTest, PassesAStopRequestOnToTheRanks) {
  for (const char* name : {"INT", "TERM", "HUP", "USR2"}) {
    std::filesystem::remove(folder_ / "calls");
    const std::string rank =
        absl::StrCat("trap 'exit 130' USR2\nkill -", name, " $LAUNCHER\n", "while :; do sleep 0.01; done");
    EXPECT_EQ(LaunchRank(rank), 130) << name;
    EXPECT_THAT(Calls(), SizeIs(1));
  }
}

TEST_F(LaunchTest, DoesNotRestartAfterAStopRequest) {
  EXPECT_EQ(LaunchRank("trap 'kill -KILL $$' USR2\nkill -TERM $LAUNCHER\nwhile :; do sleep 0.01; done"), 137);
  EXPECT_THAT(Calls(), SizeIs(1));
}

TEST_F(LaunchTest, EndsRanksThatDoNotTakeStopRequestsYet) {
  EXPECT_EQ(LaunchRank("kill -TERM $LAUNCHER\nwhile :; do sleep 0.01; done"), 130);
  EXPECT_THAT(Calls(), SizeIs(1));
}

TEST_F(LaunchTest, EndsAtTheFirstStopRequestWhileAHostDoesNotAnswer) {
  options_.mpirun = Script("mpirun", kMpirunWithAHost);
  folder_.Write("silent", "");
  for (const char* name : {"INT", "TERM", "HUP"}) {
    std::filesystem::remove(folder_ / "calls");
    Script("agent", absl::StrCat("#!/bin/sh\nkill -", name, " $LAUNCHER\nwhile :; do sleep 0.01; done"));
    EXPECT_EQ(LaunchRank("exit 0"), 130) << name;
    EXPECT_THAT(Calls(), SizeIs(1));
  }
}

TEST_F(LaunchTest, EndsWithTheCodeOfAStopThatMpirunHasTakenBeforeItsRanksExist) {
  folder_.Write("before", "trap 'exit 0' USR2\nkill -TERM $LAUNCHER\nwhile :; do sleep 0.01; done");
  EXPECT_EQ(LaunchRank("exit 0"), 130);
  EXPECT_THAT(Calls(), SizeIs(1));
}

TEST_F(LaunchTest, NamesAHostThatDoesNotAnswerUntilTheDeadline) {
  options_.mpirun = Script("mpirun", kMpirunWithAHost);
  folder_.Write("silent", "");
  Script("agent", "#!/bin/sh\nkill -USR1 $LAUNCHER\nwhile :; do sleep 0.01; done");  // A save ends nothing.
  options_.startup_timeout = absl::Milliseconds(200);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(LaunchRank("exit 0"), 86);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("weft launch: attempt 1 of 4 ended with exit code 86 (far did not answer mpirun within "
                "200ms: check that ssh"));
  EXPECT_THAT(Calls(), SizeIs(1));
}

// A program in place of mpirun may hide them.
TEST_F(LaunchTest, HasNoDeadlineForRanksOfThisHost) {
  options_.hosts.clear();
  folder_.Write("before", "sleep 0.3");
  options_.startup_timeout = absl::Milliseconds(50);
  EXPECT_EQ(LaunchRank("exit 0"), 0);
}

TEST_F(LaunchTest, EndsEverythingAtTheSecondSignalOfAKind) {
  EXPECT_EQ(LaunchRank("trap 'kill -INT $LAUNCHER' USR2\nkill -INT $LAUNCHER\nwhile :; do sleep 0.01; done"),
            130);
  EXPECT_THAT(Calls(), SizeIs(1));
}

TEST_F(LaunchTest, WaitsForTheRanksIfTheSecondSignalIsOfAnotherKind) {
  EXPECT_EQ(LaunchRank("trap 'kill -TERM $LAUNCHER; stop=1' USR2\nkill -INT $LAUNCHER\n"
                       "while [ -z \"$stop\" ]; do sleep 0.01; done\nexit 4"),
            4);
}

// A terminal that closes causes two. The launch takes the second one before the save request.
TEST_F(LaunchTest, WaitsForTheRanksAfterASecondSIGHUP) {
  EXPECT_EQ(LaunchRank("trap 'kill -HUP $LAUNCHER; kill -USR1 $LAUNCHER' USR2\ntrap 'exit 4' USR1\n"
                       "kill -HUP $LAUNCHER\nwhile :; do sleep 0.01; done"),
            4);
}

TEST(Requests, TakeARepeatedStopSignalAsADemandToEndAtOnceUnlessItMayComeTwice) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR2}) {
    internal::Requests requests(/*ranks_are_local=*/true);
    EXPECT_TRUE(requests.Add(signal));
    EXPECT_FALSE(requests.end_at_once());
    requests.Add(signal);
    EXPECT_EQ(requests.end_at_once(), signal == SIGINT || signal == SIGTERM) << signal;
  }
}

TEST_F(LaunchTest, PassesASaveRequestOnToTheRanks) {
  EXPECT_EQ(LaunchRank("trap 'exit 0' USR1\nkill -USR1 $LAUNCHER\nwhile :; do sleep 0.01; done"), 0);
  EXPECT_THAT(Calls(), SizeIs(1));
}

TEST_F(LaunchTest, HoldsASaveRequestBackUntilARankTakesIt) {
  options_.hosts.clear();  // With hosts, mpirun would pass the signal on.
  folder_.Write("before", "kill -USR1 $LAUNCHER\n");
  EXPECT_EQ(LaunchRank("trap 'exit 0' USR1\nwhile :; do sleep 0.01; done"), 0);
  EXPECT_THAT(Calls(), SizeIs(1));
}

TEST_F(LaunchTest, StopsWhileItWaitsForTheNextAttempt) {
  options_.restart_delay_s = 1000;
  // The signal comes when the launch has seen the end of mpirun.
  folder_.Write(
      "after",
      "mpirun=$$; (while kill -0 $mpirun; do sleep 0.01; done; kill -TERM $LAUNCHER) 2>/dev/null &\n");
  EXPECT_EQ(LaunchRank("exit 86"), 130);
  EXPECT_THAT(Calls(), SizeIs(1));
}

TEST_F(LaunchTest, NamesAListOfVariablesThatMpirunWouldRefuse) {
  {
    const ::weft::testing::ScopedVariable list("OMPI_MCA_mca_base_env_list", "A=1");
    EXPECT_THAT(Launch(options_, {{"PROGRAM"}, {}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("either -x or the list OMPI_MCA_mca_base_env_list"),
                               EndsWith("unset the list"))));
  }
  options_.mca = {{"mca_base_env_list", "A=1"}};
  EXPECT_THAT(Launch(options_, {{"PROGRAM"}, {}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("either -x or the list --mca mca_base_env_list"),
                             EndsWith("remove the list"))));
}

TEST_F(LaunchTest, NamesAMissingMpirunAndTheRemedy) {
  options_.mpirun = "no-such-mpirun";
  EXPECT_THAT(Launch(options_, {{"PROGRAM"}, {}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no program 'no-such-mpirun': install Open MPI")));
}

TEST_F(LaunchTest, ReportsAnMpirunThatCannotBeExecuted) {
  options_.mpirun = Script("broken", "#!/no/such/shell\n");
  EXPECT_THAT(Launch(options_, {{"PROGRAM"}, {}}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("broken")));
}

// mpirun waits without a deadline for the daemon of a host that it has lost.
TEST_F(LaunchTest, EndsAnMpirunThatOutlivesItsRanks) {
  folder_.Write("after", "sleep 1000 & wait\n");
  // The rank ends at the signal, which the launch sends only to ranks that it has seen.
  folder_.Write("rank", "trap 'exit 0' USR1\nkill -USR1 $LAUNCHER\nwhile :; do sleep 0.01; done");
  for (const bool ranks_are_local : {false, true}) {
    const internal::SignalQueue signals({SIGCHLD, SIGUSR1});
    internal::Requests requests(ranks_are_local);
    ASSERT_OK_AND_ASSIGN(const auto daemon,
                         internal::DaemonProcess::Start(
                             {options_.mpirun}, {{"OMPI_MCA_orte_tmpdir_base", folder_.str()}}, "no agents"));
    const internal::AttemptEnd end = Supervise(daemon, signals, requests, {.loss = absl::Milliseconds(50)});
    EXPECT_EQ(end.kind, ranks_are_local ? internal::EndKind::kHung : internal::EndKind::kHostLost);
    EXPECT_THAT(internal::DescendantsOf(getpid()), IsEmpty());
  }
}

// A reader that pauses makes mpirun wait, too.
TEST_F(LaunchTest, LetsAnMpirunWhoseOutputWaitsForAReaderOutliveItsRanks) {
  folder_.Write("after", "while [ ! -e \"$FOLDER/reads\" ]; do sleep 0.01; done\n");
  folder_.Write("rank", "trap 'exit 4' USR1\nkill -USR1 $LAUNCHER\nwhile :; do sleep 0.01; done");
  const internal::SignalQueue signals({SIGCHLD, SIGUSR1});
  internal::Requests requests(/*ranks_are_local=*/true);
  ASSERT_OK_AND_ASSIGN(const auto daemon,
                       internal::DaemonProcess::Start(
                           {options_.mpirun}, {{"OMPI_MCA_orte_tmpdir_base", folder_.str()}}, "no agents"));
  int asked = 0;  // How often since the rank has ended.
  const internal::AttemptEnd end =
      Supervise(daemon, signals, requests, {.loss = absl::ZeroDuration(), .waits_for_reader = [&] {
                                              if (++asked == 2) folder_.Write("reads", "");
                                              return true;
                                            }});
  EXPECT_EQ(end.kind, internal::EndKind::kExited);
  EXPECT_EQ(end.value, 4);
  EXPECT_GE(asked, 2);
}

// If no rank runs on this host, the launch detects a lost host by the end of another host's daemon.
TEST_F(LaunchTest, EndsAnMpirunThatOutlivesTheDaemonOfAHost) {
  Script("agent", "#!/bin/sh\ntrap 'exit 0' USR1\nkill -USR1 $LAUNCHER\nwhile :; do sleep 0.01; done");
  options_.mpirun = Script("mpirun", kMpirunWithAHost);
  const internal::SignalQueue signals({SIGCHLD, SIGUSR1});
  internal::Requests requests(/*ranks_are_local=*/false);
  ASSERT_OK_AND_ASSIGN(const auto daemon,
                       internal::DaemonProcess::Start({options_.mpirun}, {}, "the-folder"));
  const internal::AttemptEnd end = Supervise(daemon, signals, requests, {.loss = absl::Milliseconds(50)});
  EXPECT_EQ(end.kind, internal::EndKind::kHostLost);
  EXPECT_TRUE(end.started_no_rank);
  EXPECT_THAT(internal::DescendantsOf(getpid()), IsEmpty());
}

TEST_F(LaunchTest, PassesAStopRequestOnToMpirunOnceAllHostsHaveAnswered) {
  Script("agent", "#!/bin/sh\nkill -TERM $LAUNCHER\nwhile :; do sleep 0.01; done");
  options_.mpirun = Script("mpirun", kMpirunWithAHost);
  const internal::SignalQueue signals({SIGCHLD, SIGTERM});
  internal::Requests requests(/*ranks_are_local=*/false);
  ASSERT_OK_AND_ASSIGN(const auto daemon,
                       internal::DaemonProcess::Start({options_.mpirun}, {}, "the-folder"));
  const internal::AttemptEnd end = Supervise(daemon, signals, requests, {});
  EXPECT_EQ(end.kind, internal::EndKind::kExited);
  EXPECT_EQ(end.value, 7);
}

}  // namespace
}  // namespace weft
