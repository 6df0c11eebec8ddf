#include "src/cli/stop_signals.h"

#include <pthread.h>

#include <set>

namespace weft {
namespace {

// Ends the process by the signal's default action, so that the parent sees which signal it was.
void EndProcessBy(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  std::raise(signal);
}

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, &previous_mask_);
  thread_ = std::thread(&StopSignals::TakeSignals, this);
}

StopSignals::~StopSignals() {
  // A queued signal that carries `this` comes from this object.
  pthread_sigqueue(thread_.native_handle(), SIGTERM, {.sival_ptr = this});
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

const std::atomic<bool>& StopSignals::EnableGracefulStop() {
  graceful_ = true;
  return stop_requested_;
}

void StopSignals::TakeSignals() {
  std::set<int> taken;
  for (;;) {
    siginfo_t info;
    const int signal = sigwaitinfo(&signals_, &info);
    if (signal < 0) continue;  // EINTR: the process was stopped and continued.
    if (info.si_code == SI_QUEUE && info.si_value.sival_ptr == this) return;
    if (!graceful_ || !taken.insert(signal).second) EndProcessBy(signal);
    stop_requested_ = true;
  }
}

}  // namespace weft
