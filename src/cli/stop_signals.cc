#include "src/cli/stop_signals.h"

#include <pthread.h>

#include <cstdlib>
#include <set>

#include "weft/core/exit_codes.h"
#include "weft/launch/signals.h"

namespace weft {
namespace {

sigset_t TakenSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  sigaddset(&signals, SIGUSR2);
  if (!IsIgnored(SIGHUP)) sigaddset(&signals, SIGHUP);
  return signals;
}

}  // namespace

void StopSignals::Block() {
  const sigset_t signals = TakenSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

StopSignals::StopSignals() : signals_(TakenSignals()) {
  pthread_sigmask(SIG_BLOCK, &signals_, &previous_mask_);
  thread_ = std::thread(&StopSignals::TakeSignals, this);
}

StopSignals::~StopSignals() {
  // A value of the signal could not tell it from others: the kernel drops values beyond RLIMIT_SIGPENDING.
  ending_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR2);
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
    const int signal = sigwaitinfo(&signals_, nullptr);
    if (signal < 0) continue;  // EINTR: the process was stopped and continued.
    if (ending_) return;
    if (signal == SIGUSR1) {
      save_requested_ = true;
      continue;
    }
    const bool first = taken.insert(signal).second;
    const bool repeats = signal == SIGUSR2 || signal == SIGHUP;
    if (!graceful_ || (!first && !repeats)) std::_Exit(kExitInterrupted);
    stop_requested_ = true;
  }
}

}  // namespace weft
