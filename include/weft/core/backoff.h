// Pauses of a polling loop: first only yields the core, then sleeps ever longer, so that waiting ranks leave
// the cores to those that they wait for.
//
// Thread safety: none; one thread polls.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace weft {

class Backoff {
 public:
  void Pause() {
    constexpr int kYields = 64;
    constexpr std::chrono::microseconds kLongest(1000);
    if (++pauses_ <= kYields) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, kLongest);
  }

 private:
  int pauses_ = 0;
  std::chrono::microseconds sleep_{10};
};

}  // namespace weft
