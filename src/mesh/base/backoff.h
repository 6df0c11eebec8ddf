// Exponential backoff of a polling loop.
//
// The first pauses yield the core. Later pauses sleep, from 10 us up to 1 ms. Polling ranks thereby leave the
// cores to the ranks they wait for.
//
// Thread safety: none; each polling thread has its own.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace weft::internal {

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

}  // namespace weft::internal
