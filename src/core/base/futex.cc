#include "weft/core/futex.h"

#include <unistd.h>

#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>

#include <climits>

namespace weft {
namespace {

// The kernel needs the address of a plain integer. A lock-free 32-bit atomic has the same layout.
const uint32_t* Storage(const std::atomic<uint32_t>& word) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
                std::atomic<uint32_t>::is_always_lock_free);
  return reinterpret_cast<const uint32_t*>(&word);
}

}  // namespace

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
               bool between_processes) {
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  const timespec timeout{timeout_ns / kNsPerSecond, timeout_ns % kNsPerSecond};
  syscall(SYS_futex, Storage(word), between_processes ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, expected, &timeout,
          nullptr, 0);
}

void FutexWakeAll(const std::atomic<uint32_t>& word, bool between_processes) {
  syscall(SYS_futex, Storage(word), between_processes ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace weft
