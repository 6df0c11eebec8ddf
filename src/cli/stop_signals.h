// Signals that request something of a run: SIGINT (Ctrl-C), SIGTERM (from a batch system), SIGHUP (from a
// terminal that closes) and SIGUSR2 (from `weft launch`) stop it, and SIGUSR1 saves a checkpoint.
//
// mpirun forwards SIGUSR1 and SIGUSR2 to the ranks of all hosts. A repeated SIGUSR2 has no effect, because
// the rank may have got another signal as well. A repeated SIGHUP has no effect either: when a terminal
// closes, both its shell and the kernel send one.
//
// Note [Signals are taken in a thread]
// Problem: a plain signal handler that interrupts a matrix product corrupts the heap, see Note [Signal
//   handlers] in weft/nn/matmul.h. SA_ONSTACK helps only threads with an alternate stack, and OpenMP and MPI
//   start threads of their own.
// Rule: every thread blocks the signals, and one thread takes them with sigwaitinfo.
// Why it suffices: no handler ever runs. A thread inherits the mask of the thread that starts it.
// Without it: about one stopped run in eight crashes.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

namespace weft {

// Takes SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 for the whole process. SIGHUP stays ignored if it was.
//
// REQUIRES: the process has no other thread when it is constructed. There is one instance at a time.
// Thread safety: one thread constructs, calls and destroys it.
class StopSignals {
 public:
  // Blocks the signals in the calling thread, so that they wait for an instance.
  static void Block();

  // Blocks the signals and starts the thread that takes them. Until EnableGracefulStop, all but SIGUSR1 end
  // the process with kExitInterrupted.
  StopSignals();
  // Ends the thread and restores the signal mask of the calling thread.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on the first signal that stops a run sets the returned flag. The second SIGINT, and the second
  // SIGTERM, ends the process with kExitInterrupted. Lifetime of the flag: this object's.
  const std::atomic<bool>& EnableGracefulStop();
  // SIGUSR1 sets this flag. Lifetime: this object's.
  std::atomic<bool>& save_requested() { return save_requested_; }

 private:
  void TakeSignals();

  const sigset_t signals_;
  sigset_t previous_mask_{};
  std::atomic<bool> graceful_{false};
  std::atomic<bool> stop_requested_{false};
  std::atomic<bool> save_requested_{false};
  std::atomic<bool> ending_{false};
  std::thread thread_;  // Last: it uses the other members.
};

}  // namespace weft
