// A thread that makes no MPI call and takes no lock of the engine: when an operation has been running for
// longer than anybody would wait, it writes the flight recorder and ends the process with exit code 86, which
// mpirun passes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "src/comm/engine/recorder.h"

namespace weft {

inline constexpr int kWatchdogExitCode = 86;

class Watchdog {
 public:
  struct Options {
    int64_t limit_ns;           // Of an operation's run.
    std::string recorder_path;  // Empty: standard error.
    int rank;
  };
  // `now` is the clock of the recorder's times. `end` ends the process; it is a parameter for tests.
  Watchdog(const Recorder& recorder, Options options, std::function<int64_t()> now,
           std::function<void(int)> end);
  ~Watchdog();

 private:
  void Run();
  void Bark(const Recorder::Stuck& stuck) const;

  const Recorder& recorder_;
  const Options options_;
  const std::function<int64_t()> now_;
  const std::function<void(int)> end_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace weft
