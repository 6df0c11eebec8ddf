#include "src/comm/engine/watchdog.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/comm/collectives/operation.h"

namespace weft {
namespace {

constexpr int64_t kLimitNs = 1'000'000;  // Also the shortest interval between two checks.

std::unique_ptr<OperationRecord> RunningSince(int64_t started_ns) {
  auto record = std::make_unique<OperationRecord>();
  record->lane = 0;
  record->lane_name = "world/all_gather";
  record->descriptor.sequence = 4;
  record->started_ns = started_ns;
  record->state = OperationState::kRunning;
  return record;
}

// Clock of the watchdog that counts how often it is read. The watchdog reads it only while an operation runs.
class Clock {
 public:
  explicit Clock(int64_t now_ns) : now_ns_(now_ns) {}
  int64_t Read() {
    const std::lock_guard lock(mutex_);
    ++reads_;
    read_.notify_all();
    return now_ns_;
  }
  void AwaitReads(int reads) {
    std::unique_lock lock(mutex_);
    read_.wait(lock, [&] { return reads_ >= reads; });
  }

 private:
  const int64_t now_ns_;
  std::mutex mutex_;
  std::condition_variable read_;
  int reads_ = 0;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Watchdog, WritesTheRecorderAndEndsTheProcessWhenAnOperationIsStuck) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/weft-watchdog-", getpid(), ".json");
  Recorder recorder(/*rank=*/2, 8);
  const auto stuck = RunningSince(100);
  recorder.Record(*stuck);
  recorder.RecordWait(*stuck, "waits for rank(s) 1");
  Clock clock(100 + kLimitNs);
  std::promise<int> exit_code;
  ::testing::internal::CaptureStderr();
  {
    const Watchdog watchdog(
        recorder, {kLimitNs, path, /*rank=*/2}, [&] { return clock.Read(); },
        [&](int code) { exit_code.set_value(code); });
    EXPECT_EQ(exit_code.get_future().get(), 86);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::AllOf(::testing::HasSubstr("rank 2"), ::testing::HasSubstr("lane world/all_gather"),
                               ::testing::HasSubstr("waits for rank(s) 1")));
  const auto written = nlohmann::json::parse(ReadFile(path));
  EXPECT_EQ(written["rank"], 2);
  EXPECT_EQ(written["operations"][0]["sequence"], 4);
  EXPECT_EQ(written["operations"][0]["waiting_for"], "waits for rank(s) 1");
  std::filesystem::remove(path);
}

TEST(Watchdog, WritesToStandardErrorIfTheFileCannotBeWritten) {
  Recorder recorder(0, 8);
  recorder.Record(*RunningSince(0));
  Clock clock(2 * kLimitNs);
  std::promise<int> exit_code;
  ::testing::internal::CaptureStderr();
  {
    const Watchdog watchdog(
        recorder, {kLimitNs, "/nonexistent/folder/file.json", 0}, [&] { return clock.Read(); },
        [&](int code) { exit_code.set_value(code); });
    exit_code.get_future().wait();
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("\"operations\""));
}

TEST(Watchdog, DoesNothingBeforeTheLimit) {
  Recorder recorder(0, 8);
  recorder.Record(*RunningSince(100));
  Clock clock(100 + kLimitNs - 1);
  std::atomic<bool> ended{false};
  {
    const Watchdog watchdog(
        recorder, {kLimitNs, "", 0}, [&] { return clock.Read(); }, [&](int /*code*/) { ended = true; });
    clock.AwaitReads(3);
  }
  EXPECT_FALSE(ended);
}

TEST(Watchdog, StopsAtOnceWhenDestroyed) {
  Recorder recorder(0, 8);
  const Watchdog watchdog(
      recorder, {int64_t{1} << 60, "", 0}, [] { return int64_t{0}; }, [](int /*code*/) {});
}

}  // namespace
}  // namespace weft
