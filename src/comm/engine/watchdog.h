// Watchdog thread: when an operation runs for too long, writes the flight recorder and ends the process.
//
// The thread makes no MPI call and does not take the core's lock. The exit code is 86, which mpirun passes
// on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include <absl/base/thread_annotations.h>

#include "src/comm/engine/mutex.h"
#include "src/comm/engine/recorder.h"

namespace weft {

inline constexpr int kWatchdogExitCode = 86;

class Watchdog {
 public:
  struct Options {
    int64_t limit_ns;           // Longest run time of an operation.
    std::string recorder_path;  // Empty: standard error.
    int rank;
  };
  // `now` reads the clock of the recorder's times. `end` ends the process with an exit code; tests replace
  // it.
  Watchdog(const Recorder& recorder, Options options, std::function<int64_t()> now,
           std::function<void(int)> end);
  ~Watchdog();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteReport(const Recorder::StuckOperation& stuck) const;

  const Recorder& recorder_;
  const Options options_;
  const std::function<int64_t()> now_;
  const std::function<void(int)> end_;
  Mutex mutex_;
  std::condition_variable_any stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weft
