#include "src/comm/engine/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace weft {

Watchdog::Watchdog(const Recorder& recorder, Options options, std::function<int64_t()> now,
                   std::function<void(int)> end)
    : recorder_(recorder),
      options_(std::move(options)),
      now_(std::move(now)),
      end_(std::move(end)),
      thread_([this] { Run(); }) {}

Watchdog::~Watchdog() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void Watchdog::Run() {
  constexpr int64_t kChecksPerLimit = 20;
  constexpr int64_t kLongestNs = 1'000'000'000;
  const std::chrono::nanoseconds interval(
      std::clamp<int64_t>(options_.limit_ns / kChecksPerLimit, 1'000'000, kLongestNs));
  const MutexLock lock(mutex_);
  const auto is_stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; };
  while (!stopped_.wait_for(mutex_, interval, is_stopped)) {
    const std::optional<Recorder::StuckOperation> stuck = recorder_.OldestRunning();
    if (!stuck || now_() - stuck->started_ns < options_.limit_ns) continue;
    WriteReport(*stuck);
    end_(kWatchdogExitCode);
    return;
  }
}

void Watchdog::WriteReport(const Recorder::StuckOperation& stuck) const {
  std::fprintf(stderr, "weft: rank %d: an operation has run for over %.0f s; ending the process: %s\n",
               options_.rank, static_cast<double>(options_.limit_ns) * 1e-9, stuck.text.c_str());
  const std::string json = recorder_.Json();
  std::FILE* file =
      options_.recorder_path.empty() ? nullptr : std::fopen(options_.recorder_path.c_str(), "w");
  std::fprintf(file != nullptr ? file : stderr, "%s\n", json.c_str());
  if (file != nullptr) std::fclose(file);
  std::fflush(stderr);
}

}  // namespace weft
