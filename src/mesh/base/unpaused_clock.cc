#include "weft/mesh/unpaused_clock.h"

#include <algorithm>

namespace weft {
namespace {

// Reads in this time are not noted, so that threads that read do not take the cache line from each other.
constexpr int64_t kUnnotedNs = 100'000'000;

}  // namespace

int64_t UnpausedClock::Read(int64_t now_ns) {
  // Acquire: whoever sees that a pause was counted sees its length.
  int64_t last = last_read_ns_.load(std::memory_order_acquire);
  if (now_ns - last > kPauseNs) {
    const MutexLock lock(mutex_);
    last = last_read_ns_.load(std::memory_order_relaxed);
    if (now_ns - last > kPauseNs) {  // Otherwise another thread has counted it.
      paused_ns_.fetch_add(now_ns - last, std::memory_order_relaxed);
      last_read_ns_.store(now_ns, std::memory_order_release);
    }
  } else if (now_ns - last > kUnnotedNs) {
    // Fails if another thread has noted a later time.
    last_read_ns_.compare_exchange_strong(last, now_ns, std::memory_order_acq_rel);
  }
  // A thread that read the system's clock before a pause, and comes here after it, must not go back by it.
  last = last_read_ns_.load(std::memory_order_acquire);
  return std::max(now_ns, last) - paused_ns_.load(std::memory_order_relaxed);
}

}  // namespace weft
