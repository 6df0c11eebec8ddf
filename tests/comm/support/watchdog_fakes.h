// What a watchdog watches, reads and calls, under the control of a test.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>

#include <absl/time/time.h>
#include <gtest/gtest.h>

#include "src/comm/base/operation_record.h"
#include "tests/support/test_timeout.h"

namespace weft::testing {

inline std::unique_ptr<OperationRecord> RunningSince(int64_t started_ns) {
  auto record = std::make_unique<OperationRecord>();
  record->lane = 0;
  record->lane_name = "world/all_gather";
  record->descriptor.sequence = 4;
  record->started_ns = started_ns;
  record->state = OperationState::kRunning;
  return record;
}

// Clock of the watchdog that counts how often it is read. The watchdog reads it once in each check.
class WatchdogClock {
 public:
  explicit WatchdogClock(int64_t now_ns) : now_ns_(now_ns) {}
  int64_t Read() {
    const std::lock_guard lock(mutex_);
    ++reads_;
    read_.notify_all();
    return now_ns_;
  }
  // Waits for further reads.
  void AwaitReads(int reads) {
    std::unique_lock lock(mutex_);
    const int wanted = reads_ + reads;
    EXPECT_TRUE(read_.wait_for(lock, absl::ToChronoSeconds(kTestTimeout), [&] { return reads_ >= wanted; }));
  }
  void Set(int64_t now_ns) {
    const std::lock_guard lock(mutex_);
    now_ns_ = now_ns;
  }

 private:
  int64_t now_ns_;
  std::mutex mutex_;
  std::condition_variable read_;
  int reads_ = 0;
};

// Replaces the function that ends the process.
class FakeExit {
 public:
  std::function<void(int)> Function() {
    return [this](int code) {
      called_ = true;
      code_.set_value(code);
    };
  }
  bool called() const { return called_; }
  // Returns the exit code, or 0 if there is no call in time.
  int AwaitCode() {
    std::future<int> code = code_.get_future();
    return code.wait_for(absl::ToChronoSeconds(kTestTimeout)) == std::future_status::ready ? code.get() : 0;
  }

 private:
  std::atomic<bool> called_{false};
  std::promise<int> code_;
};

}  // namespace weft::testing
