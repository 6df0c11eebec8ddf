// A key-value store in memory, and ranks that are threads with one store.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/mesh/key_value_store.h"

namespace weft::testing {

// A store in memory that counts its keys and can fail.
class MemoryStore final : public KeyValueStore {
 public:
  absl::Status Set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    values_[std::string(key)] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                      [&] { return values_.contains(std::string(key)); });
    if (!failure_.ok()) return failure_;
    const auto found = values_.find(std::string(key));
    if (found == values_.end()) return absl::DeadlineExceededError("no such key");
    return found->second;
  }
  absl::Status Delete(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    values_.erase(std::string(key));
    return absl::OkStatus();
  }

  void Fail(absl::Status failure) { failure_ = std::move(failure); }
  size_t size() const { return values_.size(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  absl::Status failure_;
};

// Runs `body` as every rank, each on its own thread.
inline void RunRanks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace weft::testing
