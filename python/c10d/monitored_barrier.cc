#include "python/c10d/monitored_barrier.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <thread>
#include <utility>

#include "python/c10d/signals.h"
#include "python/interface/deadline.h"

namespace weft::python {
namespace {

constexpr std::chrono::milliseconds kShortestSleep(1);
constexpr std::chrono::milliseconds kLongestSleep(20);
// How much longer the other ranks wait than rank 0, whose message says which ranks are missing.
constexpr std::chrono::milliseconds kAnswerMargin(1000);
constexpr char kPassed[] = "passed";

[[noreturn]] void Fail(const std::string& message) { C10_THROW_ERROR(DistBackendError, "weft: " + message); }

}  // namespace

MonitoredBarrier::MonitoredBarrier(c10::intrusive_ptr<::c10d::Store> store, std::string prefix, int rank,
                                   int size)
    : store_(std::move(store)), prefix_(std::move(prefix)), rank_(rank), size_(size) {}

std::string MonitoredBarrier::Key(uint64_t number, const std::string& what) const {
  return prefix_ + "/" + std::to_string(number) + "/" + what;
}

bool MonitoredBarrier::WaitForKeys(const std::vector<std::string>& keys, TimePoint deadline) {
  auto sleep = kShortestSleep;
  while (!store_->check(keys)) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    RaisePendingSignals();
    std::this_thread::sleep_for(sleep);
    sleep = std::min(2 * sleep, kLongestSleep);
  }
  return true;
}

std::vector<int> MonitoredBarrier::MissingRanks() {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!store_->check({Key(number_, std::to_string(rank))})) missing.push_back(rank);
  }
  return missing;
}

void MonitoredBarrier::Wait(std::chrono::milliseconds timeout, bool names_all) {
  const WithoutInterpreterLock unlocked;
  ++number_;
  const TimePoint deadline = DeadlineAfter(timeout);
  const std::string answer = Key(number_, "answer");
  store_->set(Key(number_, std::to_string(rank_)), std::string(kPassed));
  if (rank_ != 0) {
    const std::string reached =
        "Rank " + std::to_string(rank_) +
        " successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0: ";
    if (!WaitForKeys({answer}, deadline + kAnswerMargin)) {
      Fail(reached + "no answer in " + std::to_string((timeout + kAnswerMargin).count()) + " ms");
    }
    const std::string outcome = store_->get_to_str(answer);
    if (outcome != kPassed) Fail(reached + outcome);
    return;
  }
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) keys.push_back(Key(number_, std::to_string(rank)));
  if (timeout.count() > 0 ? WaitForKeys(keys, deadline) : store_->check(keys)) {
    store_->set(answer, std::string(kPassed));
    // All ranks have read the answer of the barrier before.
    for (int rank = 0; rank < size_; ++rank) store_->deleteKey(Key(number_ - 1, std::to_string(rank)));
    store_->deleteKey(Key(number_ - 1, "answer"));
    return;
  }
  std::vector<int> missing = MissingRanks();
  std::string message;
  if (timeout.count() == 0) {
    message = "Rank 0 timed out in monitoredBarrier after 0 ms. Missing ranks: " + c10::Join(", ", missing);
  } else if (names_all) {
    message = "Ranks " + c10::Join(", ", missing) + " failed to pass monitoredBarrier in " +
              std::to_string(timeout.count()) + " ms";
  } else {
    // A rank may have come after the deadline.
    const std::string first = missing.empty() ? std::to_string(size_ - 1) : std::to_string(missing.front());
    message = "Rank " + first + " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) +
              " ms. Missing ranks: " + c10::Join(", ", missing);
  }
  store_->set(answer, message);
  Fail(message);
}

}  // namespace weft::python
