#include "src/launch/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <sys/wait.h>

#include <absl/time/clock.h>

#include "src/launch/processes.h"

namespace weft::internal {
namespace {

// `weft train` takes it like SIGTERM, and ignores further ones: the ranks may have got SIGTERM themselves.
constexpr int kStopSignal = SIGUSR2;
constexpr int kSaveSignal = SIGUSR1;
constexpr int kInterrupted = 130;

// Ranks are looked at more often soon after the start, and while a request waits for them.
constexpr absl::Duration kShortestInterval = absl::Milliseconds(20);
constexpr absl::Duration kLongestInterval = absl::Seconds(1);
constexpr absl::Duration kPendingInterval = absl::Milliseconds(50);
// Time in which mpirun ends by itself after SIGTERM: it gives the ranks a second. If another host is lost, it
// does not end.
constexpr absl::Duration kTerminateLimit = absl::Seconds(5);
// Helpers of mpirun end shortly after it.
constexpr absl::Duration kGrace = absl::Seconds(1);

AttemptEnd EndOf(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {EndKind::kKilled, WTERMSIG(wait_status)};
  return {EndKind::kExited, WEXITSTATUS(wait_status)};
}

// Asks the daemon to end, so that it also ends the daemons of other hosts. Kills it if it does not.
void Terminate(DaemonProcess& daemon, const SignalQueue& signals) {
  daemon.Signal(SIGTERM);
  const absl::Time end = absl::Now() + kTerminateLimit;
  while (!daemon.Poll() && absl::Now() < end) signals.Next(kShortestInterval);
  daemon.Signal(SIGKILL);
}

// Finds out if a daemon outlives its ranks.
class IdleWatch {
 public:
  explicit IdleWatch(absl::Duration limit) : limit_(limit) {}
  bool had_ranks() const { return had_ranks_; }
  // True if the last rank has ended longer ago than the limit.
  bool Expired(bool has_ranks) {
    had_ranks_ = had_ranks_ || has_ranks;
    if (has_ranks || !had_ranks_) {
      idle_since_.reset();
      return false;
    }
    if (!idle_since_) idle_since_ = absl::Now();
    return absl::Now() - *idle_since_ >= limit_;
  }

 private:
  const absl::Duration limit_;
  bool had_ranks_ = false;
  std::optional<absl::Time> idle_since_;
};

AttemptEnd WaitForEnd(DaemonProcess& daemon, const SignalQueue& signals, Requests& requests,
                      IdleWatch& idle) {
  const absl::Time start = absl::Now();
  for (;;) {
    if (const std::optional<int> status = daemon.Poll()) return EndOf(*status);
    const std::vector<pid_t> ranks = daemon.Ranks();
    requests.Deliver(daemon, ranks);
    if (requests.end_at_once()) {
      Terminate(daemon, signals);
      return {EndKind::kExited, kInterrupted};
    }
    if (idle.Expired(!ranks.empty())) {
      daemon.Signal(SIGKILL);
      return {EndKind::kHostLost};
    }
    const absl::Duration interval =
        requests.pending() ? kPendingInterval
                           : std::clamp((absl::Now() - start) / 10, kShortestInterval, kLongestInterval);
    const std::optional<int> signal = signals.Next(interval);
    if (signal && *signal != SIGCHLD) requests.Add(*signal);
  }
}

}  // namespace

SignalQueue::SignalQueue(const std::set<int>& signals) : signals_{} {
  sigemptyset(&signals_);
  for (const int signal : signals) sigaddset(&signals_, signal);
  sigprocmask(SIG_BLOCK, &signals_, nullptr);
}

std::optional<int> SignalQueue::Next(absl::Duration timeout) const {
  const timespec limit = absl::ToTimespec(timeout);
  const int signal = sigtimedwait(&signals_, nullptr, &limit);
  return signal > 0 ? std::optional(signal) : std::nullopt;
}

void Requests::Add(int signal) {
  if (signal == kSaveSignal) {
    save_pending_ = true;
    return;
  }
  stop_pending_ = stop_pending_ || !stop_requested();
  if (!stop_signals_.insert(signal).second) end_at_once_ = true;
}

void Requests::Deliver(const DaemonProcess& daemon, const std::vector<pid_t>& ranks) {
  const auto send = [&](int signal) {
    bool sent = false;
    for (const pid_t rank : ranks) sent = (TakesSignal(rank, signal) && kill(rank, signal) == 0) || sent;
    return sent;
  };
  const bool remote = ranks.empty() && !ranks_are_local_;
  if (save_pending_) {
    if (remote) daemon.Signal(kSaveSignal);
    save_pending_ = !remote && !send(kSaveSignal);
  }
  if (stop_pending_) {
    // mpirun drops the signal if the ranks do not exist yet, so it is sent until the run has ended.
    if (remote) daemon.Signal(kStopSignal);
    if (!remote) end_at_once_ = !send(kStopSignal) || end_at_once_;
    stop_pending_ = remote;
  }
}

void Requests::EndAttempt() { save_pending_ = false; }

AttemptEnd Supervise(DaemonProcess daemon, const SignalQueue& signals, Requests& requests,
                     absl::Duration idle_limit) {
  IdleWatch idle(idle_limit);
  AttemptEnd end = WaitForEnd(daemon, signals, requests, idle);
  DaemonProcess::EndDescendants(kGrace);
  requests.EndAttempt();
  end.started_no_rank = !idle.had_ranks();
  end.stop_requested = requests.stop_requested();
  return end;
}

}  // namespace weft::internal
