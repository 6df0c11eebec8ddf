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
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void Watchdog::Run() {
  constexpr int64_t kLooksPerLimit = 20;
  constexpr int64_t kLongestNs = 1'000'000'000;
  const std::chrono::nanoseconds interval(
      std::clamp<int64_t>(options_.limit_ns / kLooksPerLimit, 1'000'000, kLongestNs));
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, interval, [this] { return stop_; })) {
    const std::optional<Recorder::Stuck> stuck = recorder_.OldestRunning();
    if (!stuck || now_() - stuck->started_ns < options_.limit_ns) continue;
    Bark(*stuck);
    end_(kWatchdogExitCode);
    return;
  }
}

void Watchdog::Bark(const Recorder::Stuck& stuck) const {
  std::fprintf(stderr, "weft: rank %d: no progress for %.0f s, giving up: %s\n", options_.rank,
               static_cast<double>(options_.limit_ns) * 1e-9, stuck.text.c_str());
  const std::string json = recorder_.Json();
  std::FILE* file =
      options_.recorder_path.empty() ? nullptr : std::fopen(options_.recorder_path.c_str(), "w");
  std::fprintf(file != nullptr ? file : stderr, "%s\n", json.c_str());
  if (file != nullptr) std::fclose(file);
  std::fflush(stderr);
}

}  // namespace weft
