#include "src/cli/stop_signal.h"

#include <csignal>

namespace weft {
namespace {

// A handler can reach nothing else.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only use lock-free atomics");

void RequestStop(int signal) {
  stop_requested.store(true, std::memory_order_relaxed);
  std::signal(signal, SIG_DFL);
}

}  // namespace

const std::atomic<bool>& WatchStopSignals() {
  std::signal(SIGINT, RequestStop);
  std::signal(SIGTERM, RequestStop);
  return stop_requested;
}

}  // namespace weft
