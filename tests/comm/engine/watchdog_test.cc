#include "src/comm/engine/watchdog.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <sys/wait.h>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/comm/phases/operation.h"
#include "tests/comm/support/watchdog_fakes.h"
#include "tests/support/no_threads.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_timeout.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::FakeExit;
using ::weft::testing::NoThreads;
using ::weft::testing::RunningSince;
using ::weft::testing::StatusIs;
using ::weft::testing::WatchdogClock;

constexpr int64_t kLimitNs = 1'000'000;  // Also the shortest interval between two checks.
constexpr int64_t kPausedUntilNs = 3'600'000'000'000;

std::unique_ptr<Watchdog> StartWatchdog(const Recorder& recorder, Watchdog::Options options,
                                        std::function<int64_t()> now, std::function<void(int)> end) {
  return Watchdog::Start(recorder, std::move(options), std::move(now), std::move(end)).value();
}

TEST(Watchdog, WritesTheRecorderAndEndsTheProcessWhenAnOperationIsStuck) {
  const TempFolder folder;
  Recorder recorder(/*rank=*/2, /*ranks=*/4, 8);
  const auto stuck = RunningSince(100);
  recorder.Record(*stuck);
  recorder.RecordWait(*stuck, "waits for rank(s) 1");
  WatchdogClock clock(100 + kLimitNs);
  FakeExit end;
  ::testing::internal::CaptureStderr();
  {
    const auto watchdog = StartWatchdog(
        recorder, {kLimitNs, folder / "dumps", /*rank=*/2, /*ranks=*/1, testing::kTestTimeout},
        [&] { return clock.Read(); }, end.Function());
    EXPECT_EQ(end.AwaitCode(), 86);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("rank 2"), HasSubstr("lane world/all_gather"), HasSubstr("waits for rank(s) 1"),
                    HasSubstr(absl::StrCat("run: weft diagnose ", folder / "dumps"))));
  const auto written = nlohmann::json::parse(ReadFile(folder / "dumps/rank-2.json"));
  EXPECT_EQ(written["rank"], 2);
  EXPECT_EQ(written["operations"][0]["sequence"], 4);
  EXPECT_EQ(written["operations"][0]["waiting_for"], "waits for rank(s) 1");
}

// A restart follows a failed run within seconds.
TEST(Watchdog, KeepsTheDumpOfAnEarlierRunUnderAnotherName) {
  const TempFolder folder;
  folder.Write("rank-2.json", "second");
  folder.Write("rank-2.json.old", "first");
  folder.Write("rank-1.json", "of another rank");
  Recorder recorder(2, 3, 8);
  WatchdogClock clock(0);
  FakeExit end;
  const auto watchdog = StartWatchdog(
      recorder, {kLimitNs, folder.str(), /*rank=*/2, /*ranks=*/3}, [&] { return clock.Read(); },
      end.Function());
  EXPECT_FALSE(std::filesystem::exists(folder / "rank-2.json"));
  EXPECT_EQ(ReadFile(folder / "rank-2.json.old"), "second");
  EXPECT_EQ(ReadFile(folder / "rank-1.json"), "of another rank");
}

TEST(Watchdog, SaysWhyItCouldNotWriteTheRecorder) {
  const TempFolder folder;
  folder.Write("file", "");
  Recorder recorder(0, 1, 8);
  recorder.Record(*RunningSince(0));
  WatchdogClock clock(2 * kLimitNs);
  FakeExit end;
  ::testing::internal::CaptureStderr();
  {
    const auto watchdog = StartWatchdog(
        recorder, {kLimitNs, folder / "file/dumps", 0, 1, testing::kTestTimeout},
        [&] { return clock.Read(); }, end.Function());
    EXPECT_EQ(end.AwaitCode(), 86);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("no flight recorder: cannot write"), HasSubstr("Not a directory")));
}

TEST(Watchdog, WritesTheRecorderOnceForEachFailure) {
  const TempFolder folder;
  Recorder recorder(0, 1, 8);
  const auto watchdog = StartWatchdog(
      recorder, {int64_t{1} << 60, folder.str(), 0, 1, testing::kTestTimeout}, [] { return int64_t{0}; },
      [](int /*code*/) {});
  for (const char* cause : {"rank 1: deadline passed", "rank 1: deadline passed again"}) {
    recorder.RecordFailure(absl::DeadlineExceededError(cause));
    watchdog->DumpFailure();
    EXPECT_EQ(nlohmann::json::parse(ReadFile(folder / "rank-0.json"))["failure"], cause);
    std::filesystem::remove(folder / "rank-0.json");
    watchdog->DumpFailure();
    EXPECT_EQ(folder.FileCount(), 0U);
  }
}

TEST(Watchdog, WritesTheRecorderOfAFailureAfterAReset) {
  const TempFolder folder;
  Recorder recorder(0, 1, 8);
  const auto watchdog = StartWatchdog(
      recorder, {int64_t{1} << 60, folder.str(), 0, 1, testing::kTestTimeout}, [] { return int64_t{0}; },
      [](int /*code*/) {});
  for (const char* phase : {"step 1", "step 2"}) {
    recorder.SetPhase(phase);
    recorder.RecordFailure(absl::InternalError("the same cause"));
    watchdog->DumpFailure();
    EXPECT_EQ(nlohmann::json::parse(ReadFile(folder / "rank-0.json"))["phase"], phase);
    recorder.RecordReset(/*generation=*/1);
  }
}

// The writer tells when it has written one more dump, and is killed in one of the next ones.
TEST(Watchdog, LeavesOneWholeFileWhenItsProcessIsKilled) {
  const TempFolder folder;
  const int unnamed = open(folder.str().c_str(), O_TMPFILE | O_WRONLY, 0600);
  const size_t most_files = unnamed < 0 ? 2 : 1;  // Without unnamed files, a partial one may stay.
  if (unnamed >= 0) close(unnamed);
  int files = 0;
  for (int round = 0; round < 100; ++round) {
    std::array<int, 2> ends = {};
    ASSERT_EQ(pipe(ends.data()), 0);
    const pid_t writer = fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) {
      close(ends[0]);
      Recorder recorder(0, 1, 8);
      const auto watchdog = StartWatchdog(
          recorder, {int64_t{1} << 60, folder.str(), 0, 1, testing::kTestTimeout}, [] { return int64_t{0}; },
          [](int /*code*/) {});
      do {
        recorder.RecordFailure(absl::InternalError("a failure"));
        watchdog->DumpFailure();
      } while (write(ends[1], "", 1) == 1);
      _exit(0);
    }
    close(ends[1]);
    std::vector<char> dumps(static_cast<size_t>(1 + round % 10));
    for (char& dump : dumps) EXPECT_EQ(read(ends[0], &dump, 1), 1);
    kill(writer, SIGKILL);
    waitpid(writer, nullptr, 0);
    close(ends[0]);
    std::filesystem::remove(folder / "rank-0.json.old");  // The file of the writer before.
    EXPECT_LE(folder.FileCount(), most_files);
    if (!std::filesystem::exists(folder / "rank-0.json"))
      continue;  // It was killed between the move of a dump and the next one.
    EXPECT_TRUE(nlohmann::json::accept(ReadFile(folder / "rank-0.json")));
    ++files;
  }
  EXPECT_GT(files, 0);
}

// For example if the program's own thread hangs in a read.
TEST(Watchdog, EndsAProcessThatSurvivesAMissedDeadline) {
  const TempFolder folder;
  Recorder recorder(0, 1, 8);
  FakeExit end;
  ::testing::internal::CaptureStderr();
  {
    const auto watchdog = StartWatchdog(
        recorder, {kLimitNs, folder.str(), 0, 1, testing::kTestTimeout}, [] { return int64_t{0}; },
        end.Function());
    recorder.RecordFailure(absl::DeadlineExceededError("rank 1 is missing"));
    EXPECT_EQ(end.AwaitCode(), 86);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rank 1 is missing; run: weft diagnose"));
}

TEST(Watchdog, WritesNothingIfTheProgramCausedTheFailure) {
  const TempFolder folder;
  Recorder recorder(0, 1, 8);
  const auto watchdog = StartWatchdog(
      recorder, {int64_t{1} << 60, folder.str(), 0, 1, testing::kTestTimeout}, [] { return int64_t{0}; },
      [](int /*code*/) {});
  recorder.RecordFailure(absl::DataLossError("an unreadable file"));
  watchdog->DumpFailure();
  EXPECT_EQ(folder.FileCount(), 0U);
}

TEST(Watchdog, DoesNotEndTheProcessBeforeTheDeadlineOfAReset) {
  Recorder recorder(0, 1, 8);
  WatchdogClock clock(100);
  FakeExit end;
  ::testing::internal::CaptureStderr();
  {
    const auto watchdog = StartWatchdog(
        recorder, {kLimitNs, "", 0, 1}, [&] { return clock.Read(); }, end.Function());
    {
      const auto extension = watchdog->Extend(Watchdog::Task::kReset, /*until_ns=*/1000);
      recorder.RecordFailure(absl::DeadlineExceededError("rank 1 is missing"));
      clock.AwaitReads(30);  // More checks than a process survives without a reset.
      EXPECT_FALSE(end.called());
    }
    EXPECT_EQ(end.AwaitCode(), 86);  // The reset has failed.
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rank 1 is missing"));
}

// A process that resets its engine after each failure goes on, however often that is.
TEST(Watchdog, CountsTheChecksOfEachFailureAlone) {
  constexpr int kChecks = 60;
  Recorder recorder(0, 1, 8);
  recorder.Record(*RunningSince(100));
  std::promise<int> outcome;
  int checks = 0;
  const auto check = [&] {
    const bool is_reset = ++checks % 6 == 0;
    if (is_reset) {
      recorder.RecordReset(/*generation=*/1);
    } else {
      recorder.RecordFailure(absl::DeadlineExceededError("rank 1 is missing"));
    }
    if (checks == kChecks) outcome.set_value(0);
    return int64_t{100};
  };
  const auto watchdog =
      StartWatchdog(recorder, {kLimitNs, "", 0, 1}, check, [&](int code) { outcome.set_value(code); });
  EXPECT_EQ(outcome.get_future().get(), 0);
}

TEST(Watchdog, EndsAProcessWhoseResetExceedsItsDeadline) {
  Recorder recorder(0, 1, 8);
  WatchdogClock clock(1000);
  FakeExit end;
  ::testing::internal::CaptureStderr();
  {
    const auto watchdog = StartWatchdog(
        recorder, {kLimitNs, "", 0, 1}, [&] { return clock.Read(); }, end.Function());
    const auto extension = watchdog->Extend(Watchdog::Task::kReset, /*until_ns=*/1000);
    recorder.RecordFailure(absl::DeadlineExceededError("rank 1 is missing"));
    EXPECT_EQ(end.AwaitCode(), 86);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rank 1 is missing"));
}

TEST(Watchdog, DoesNotEndTheProcessBeforeTheLatestDeadlineOfItsWaits) {
  constexpr int64_t kDeadlineNs = 10 * kLimitNs;
  Recorder recorder(0, 1, 8);
  WatchdogClock clock(kDeadlineNs - 1);
  FakeExit end;
  ::testing::internal::CaptureStderr();
  {
    const auto watchdog = StartWatchdog(
        recorder, {kLimitNs, "", 0, 1}, [&] { return clock.Read(); }, end.Function());
    {
      const auto longer = watchdog->Extend(Watchdog::Task::kWait, kDeadlineNs);
      const auto shorter = watchdog->Extend(Watchdog::Task::kWait, kLimitNs);
      recorder.Record(*RunningSince(0));
      clock.AwaitReads(9);
    }
    clock.AwaitReads(9);  // The limit starts again.
    EXPECT_FALSE(end.called());
    clock.Set(kDeadlineNs - 1 + kLimitNs);
    EXPECT_EQ(end.AwaitCode(), 86);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("lane world/all_gather"));
}

TEST(Watchdog, DoesNothingBeforeTheLimit) {
  Recorder recorder(0, 1, 8);
  recorder.Record(*RunningSince(100));
  WatchdogClock clock(100 + kLimitNs - 1);
  FakeExit end;
  {
    const auto watchdog = StartWatchdog(
        recorder, {kLimitNs, "", 0, 1}, [&] { return clock.Read(); }, end.Function());
    clock.AwaitReads(3);
  }
  EXPECT_FALSE(end.called());
}

// A rank whose watchdog has read time 0, and may then be paused, as by Slurm's suspension of a job.
struct WatchedRank {
  WatchedRank() { clock.AwaitReads(3); }
  // The rank has paused meanwhile if this is a long time.
  void RunUntil(int64_t now_ns) {
    clock.Set(now_ns);
    clock.AwaitReads(9);
    EXPECT_FALSE(end.called());
  }

  Recorder recorder{0, 1, 8};
  WatchdogClock clock{0};
  FakeExit end;
  std::unique_ptr<Watchdog> watchdog = StartWatchdog(
      recorder, {kLimitNs, "", 0, 1}, [this] { return clock.Read(); }, end.Function());
};

TEST(Watchdog, LeavesAPauseOutOfTheLimitOfAnOperation) {
  WatchedRank rank;
  rank.recorder.Record(*RunningSince(0));
  rank.RunUntil(kLimitNs / 2);
  rank.RunUntil(kPausedUntilNs);
  rank.clock.Set(kPausedUntilNs + kLimitNs / 2);
  EXPECT_EQ(rank.end.AwaitCode(), 86);
}

TEST(Watchdog, DoesNotLeaveAPauseOutOfTheLimitOfALaterOperation) {
  WatchedRank rank;
  rank.RunUntil(kPausedUntilNs);
  rank.recorder.Record(*RunningSince(kPausedUntilNs));
  rank.clock.Set(kPausedUntilNs + kLimitNs);
  EXPECT_EQ(rank.end.AwaitCode(), 86);
}

// The wait's own deadline leaves the pause out, too.
TEST(Watchdog, LeavesAPauseOutOfTheDeadlineOfAWait) {
  constexpr int64_t kDeadlineNs = 10 * kLimitNs;
  WatchedRank rank;
  rank.recorder.Record(*RunningSince(0));
  const auto wait = rank.watchdog->Extend(Watchdog::Task::kWait, kDeadlineNs);
  rank.RunUntil(kPausedUntilNs);
  rank.clock.Set(kPausedUntilNs + kDeadlineNs / 2);
  rank.clock.AwaitReads(9);
  EXPECT_FALSE(rank.end.called());
  rank.clock.Set(kPausedUntilNs + kDeadlineNs);
  EXPECT_EQ(rank.end.AwaitCode(), 86);
}

// The process would go on while its dump is written.
TEST(Watchdog, OneThreadEndsTheProcessAndOthersWaitForIt) {
  const absl::Status missing = absl::DeadlineExceededError("rank 1 is missing");
  Recorder recorder(0, 1, 8);
  std::atomic<bool> other_has_begun{false};
  std::atomic<bool> has_ended{false};
  bool other_has_waited = false;
  std::thread other;
  Watchdog* dog = nullptr;
  const auto end = [&](int /*code*/) {
    other = std::thread([&] {
      other_has_begun = true;
      dog->EndProcess(missing);
      other_has_waited = has_ended;
    });
    while (!other_has_begun) std::this_thread::yield();
    for (int i = 0; i < 10'000; ++i) std::this_thread::yield();  // The other thread would return meanwhile.
    has_ended = true;
  };
  ::testing::internal::CaptureStderr();
  {
    const auto watchdog = StartWatchdog(
        recorder, {int64_t{1} << 60, "", 0, 1, absl::ZeroDuration()}, [] { return int64_t{0}; }, end);
    dog = watchdog.get();
    watchdog->EndProcess(missing);
    other.join();
  }
  EXPECT_TRUE(other_has_waited);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rank 1 is missing"));
}

TEST(Watchdog, StopsWhenDestroyed) {
  Recorder recorder(0, 1, 8);
  recorder.Record(*RunningSince(100));
  WatchdogClock clock(100);
  FakeExit end;
  {
    const auto watchdog = StartWatchdog(
        recorder, {int64_t{1} << 60, "", 0, 1}, [&] { return clock.Read(); }, end.Function());
    clock.AwaitReads(1);
  }
  EXPECT_FALSE(end.called());
}

TEST(Watchdog, ReturnsAnErrorIfTheSystemHasNoThread) {
  Recorder recorder(0, 1, 8);
  const NoThreads none;
  EXPECT_THAT(Watchdog::Start(
                  recorder, {int64_t{1} << 60, "", 0, 1}, [] { return int64_t{0}; }, [](int /*code*/) {}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("for the watchdog of the engine")));
}

}  // namespace
}  // namespace weft
