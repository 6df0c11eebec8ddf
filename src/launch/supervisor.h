// Supervision of mpirun or orted until it has ended, and delivery of the user's requests to the ranks.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <set>
#include <sys/types.h>
#include <vector>

#include <absl/time/time.h>

#include "src/launch/daemon_process.h"
#include "src/launch/verdict.h"

namespace weft::internal {

// A stop request of this process itself: see Note [Lost readers] in src/launch/output_relay.h. A signal that
// the system does not send to a launch.
inline constexpr int kLostReaderSignal = SIGURG;
// `weft train` stops at the first of these and ignores further ones, as it may have got SIGTERM as well.
inline constexpr int kStopSignal = SIGUSR2;

// Blocks signals of this process and takes them one by one. They stay blocked, as a launch ends with its
// process. SIGCHLD, if it is one of them, gets its default action.
class SignalQueue {
 public:
  explicit SignalQueue(const std::set<int>& signals);
  // The next signal; nothing after `timeout`.
  std::optional<int> Next(absl::Duration timeout) const;

 private:
  sigset_t signals_;
};

// Stop and save requests, which arrive as signals. A stop request outlasts the attempt.
//
// Note [Delivery of requests]
// Problem: until a rank has blocked the signals of requests, such a signal kills it.
// Rule: a request goes to ranks of this host that take its signal, as /proc shows. A stop request that finds
//   no such rank ends mpirun at once, as there is nothing to save; a save request waits for one. If all ranks
//   have ended before their reader was lost, mpirun ends by itself, with their exit code.
//   If ranks may run on other hosts only, mpirun passes the signal on, once the daemons of these hosts have
//   connected to it.
// Why it suffices: the ranks agree on a request that has reached one of them.
// Without it: SIGUSR1 right after the start ends the run that it should save. mpirun ends with exit code 0
//   if it passes a signal to a daemon that has not connected.
class Requests {
 public:
  // `ranks_are_local`: all ranks run on this host.
  explicit Requests(bool ranks_are_local) : ranks_are_local_(ranks_are_local) {}

  // Returns true if the signal is a stop signal of the user.
  bool Add(int signal);
  // Passes pending requests on. `ranks`: those of this host. `started`: this host has had ranks, or ranks of
  // other hosts may exist.
  void Deliver(DaemonProcess& daemon, const std::vector<pid_t>& ranks, bool started);
  // Drops a save request that the ended attempt has not taken.
  void EndAttempt();

  bool ranks_are_local() const { return ranks_are_local_; }
  bool pending() const { return stop_pending_ || save_pending_; }
  bool stop_requested() const { return !stop_signals_.empty(); }
  // True if another signal than kLostReaderSignal has requested a stop.
  bool user_stops() const { return stop_requested() && stop_signals_ != std::set<int>{kLostReaderSignal}; }
  bool end_at_once() const { return end_at_once_; }

 private:
  const bool ranks_are_local_;
  std::set<int> stop_signals_;  // Stop signals received so far.
  bool stop_pending_ = false;
  bool save_pending_ = false;
  // When mpirun gets the stop request again.
  std::chrono::steady_clock::time_point next_stop_ = std::chrono::steady_clock::time_point::min();
  bool end_at_once_ = false;
};

// Deadlines of a daemon.
struct DaemonLimits {
  // From its start until it has ranks on this host, or daemons of all other hosts have connected to it.
  absl::Duration start = absl::InfiniteDuration();
  // From the end of its ranks on this host, or of one of its daemons on other hosts, until its own end. Does
  // not count while the daemon's output waits for a reader.
  absl::Duration loss = absl::InfiniteDuration();
  std::function<bool()> waits_for_reader = [] { return false; };
};

// Waits until the daemon has ended. Adds signals to `requests` and delivers them. Ends the daemon if a
// request demands it, or if it misses a deadline.
// `started_no_rank` of the result refers to this host.
// On return no process of the daemon is left; inherited ones may be.
AttemptEnd Supervise(DaemonProcess daemon, const SignalQueue& signals, Requests& requests,
                     const DaemonLimits& limits);

}  // namespace weft::internal
