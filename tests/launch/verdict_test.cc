#include "src/launch/verdict.h"

#include <csignal>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr AttemptNumber kFirst = {1, 3, 5};
constexpr AttemptNumber kSecond = {2, 3, 5};
constexpr AttemptNumber kLast = {4, 3, 5};

AttemptEnd Exited(int code) { return {EndKind::kExited, code}; }

AttemptEnd WithoutRanks(int code) {
  AttemptEnd end = Exited(code);
  end.started_no_rank = true;
  return end;
}

AttemptEnd Stopped(int code) {
  AttemptEnd end = Exited(code);
  end.stop_requested = true;
  return end;
}

TEST(Verdict, RestartsAfterFailuresThatAnotherAttemptMaySurvive) {
  struct Row {
    AttemptEnd end;
    int exit_code;
    const char* cause;
  };
  const Row rows[] = {
      {Exited(1), 1, "out of memory"},
      {Exited(86), 86, "a rank failed or did not respond in time"},
      {Exited(128 + SIGKILL), 137, "a rank was killed by SIGKILL"},
      {Exited(128 + SIGSEGV), 139, "a rank was killed by SIGSEGV"},
      {Exited(128 + SIGTERM), 143, "a rank was killed by SIGTERM"},
      {Exited(77), 77, "a code that the program does not use"},
      {Exited(127), 127, "a code that the program does not use"},
      {Exited(255), 255, "a code that the program does not use"},
      {{EndKind::kKilled, SIGKILL}, 137, "mpirun was killed by SIGKILL"},
      {{EndKind::kKilled, SIGSEGV}, 139, "mpirun was killed by SIGSEGV"},
      {{EndKind::kHostLost}, 86, "mpirun waited for another host"},
      {{EndKind::kHung}, 86, "all ranks have ended, but mpirun has not"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.cause);
    const Verdict verdict = Judge(row.end, kFirst);
    EXPECT_TRUE(verdict.restart);
    EXPECT_EQ(verdict.exit_code, row.exit_code);
    EXPECT_THAT(verdict.message, HasSubstr(row.cause));
    EXPECT_THAT(verdict.message,
                StartsWith(absl::StrCat("attempt 1 of 4 ended with exit code ", row.exit_code)));
    // The attempt itself says where it goes on.
    EXPECT_THAT(verdict.message, HasSubstr("starting attempt 2 in 5 s; 2 restarts left"));
  }
}

TEST(Verdict, NeverRestartsAfterDocumentedEnds) {
  for (const int code : {0, 2, 3, 4, 130}) {
    for (const AttemptNumber& number : {kFirst, kSecond, kLast}) {
      EXPECT_FALSE(Judge(Exited(code), number).restart) << code;
      EXPECT_EQ(Judge(Exited(code), number).exit_code, code);
    }
    // The program has printed the cause.
    EXPECT_EQ(Judge(Exited(code), kFirst).message, "") << code;
  }
  EXPECT_EQ(Judge(Exited(0), kSecond).message, "finished in attempt 2 of 4");
  EXPECT_THAT(Judge(Exited(3), kSecond).message, HasSubstr("file is at fault): not restarting"));
}

TEST(Verdict, GivesUpWithTheCauseAfterTheLastRestart) {
  const Verdict verdict = Judge(Exited(137), kLast);
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.exit_code, 137);
  EXPECT_EQ(
      verdict.message,
      "attempt 4 of 4 ended with exit code 137 (a rank was killed by SIGKILL): giving up after 3 restarts");
  EXPECT_THAT(Judge(Exited(137), {2, 1, 5}).message, HasSubstr("giving up after 1 restart"));
  EXPECT_THAT(Judge(Exited(137), {1, 0, 5}).message, HasSubstr("not restarting, as --max-restarts is 0"));
}

TEST(Verdict, DoesNotRestartARunWhoseOutputNobodyReads) {
  const auto without_reader = [](int code) {
    AttemptEnd end = Exited(code);
    end.lost_output = true;
    return Judge(end, kFirst);
  };
  EXPECT_EQ(without_reader(130).exit_code, 1);
  EXPECT_THAT(without_reader(130).message, HasSubstr("so the run was stopped: not restarting"));
  EXPECT_EQ(without_reader(137).exit_code, 137);
  EXPECT_THAT(without_reader(137).message, HasSubstr("killed by SIGKILL): not restarting"));
  for (const int code : {130, 137, 1}) EXPECT_FALSE(without_reader(code).restart);
  EXPECT_EQ(without_reader(0).exit_code, 0);
}

TEST(Verdict, RestartsExactlyAsOftenAsAllowed) {
  for (const int64_t max_restarts : {0, 1, 2, 7}) {
    int64_t attempt = 1;
    while (Judge(Exited(86), {attempt, max_restarts, 0}).restart) ++attempt;
    EXPECT_EQ(attempt, max_restarts + 1);
  }
}

TEST(Verdict, DoesNotRepeatAFirstAttemptWithoutRanks) {
  EXPECT_FALSE(Judge(WithoutRanks(1), kFirst).restart);
  EXPECT_THAT(Judge(WithoutRanks(1), kFirst).message, HasSubstr("mpirun started no rank; see its messages"));
  EXPECT_TRUE(Judge(WithoutRanks(1), kSecond).restart);
}

TEST(Verdict, RepeatsAnAttemptWithASilentHostUnlessItIsTheFirst) {
  AttemptEnd end{EndKind::kNotStarted};
  end.cause = "node2 did not answer";
  EXPECT_FALSE(Judge(end, kFirst).restart);
  EXPECT_EQ(Judge(end, kFirst).message,
            "attempt 1 of 4 ended with exit code 86 (node2 did not answer): not restarting");
  EXPECT_TRUE(Judge(end, kSecond).restart);
  EXPECT_EQ(Judge(end, kSecond).exit_code, 86);
  end.stop_requested = true;
  EXPECT_FALSE(Judge(end, kSecond).restart);
  EXPECT_EQ(Judge(end, kSecond).exit_code, 130);
}

TEST(Verdict, DoesNotRestartOnceAStopIsRequested) {
  for (const int code : {0, 1, 86, 130, 137}) {
    EXPECT_FALSE(Judge(Stopped(code), kFirst).restart) << code;
    EXPECT_EQ(Judge(Stopped(code), kFirst).exit_code, code);
  }
  EXPECT_THAT(Judge(Stopped(137), kFirst).message, HasSubstr("killed by SIGKILL) while it stopped"));
  AttemptEnd hung{EndKind::kHung};
  hung.stop_requested = true;
  EXPECT_FALSE(Judge(hung, kFirst).restart);
  EXPECT_EQ(Judge(hung, kFirst).exit_code, 130);
  EXPECT_EQ(Judge(Stopped(130), kFirst).message, "");
}

}  // namespace
}  // namespace weft::internal
