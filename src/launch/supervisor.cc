#include "src/launch/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sys/wait.h>

#include "src/launch/processes.h"
#include "src/launch/start_watch.h"
#include "weft/core/exit_codes.h"

namespace weft::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSaveSignal = SIGUSR1;

// Ranks are looked at more often soon after the start, and while a request waits for them.
constexpr absl::Duration kShortestInterval = absl::Milliseconds(20);
constexpr absl::Duration kLongestInterval = absl::Seconds(1);
constexpr absl::Duration kPendingInterval = absl::Milliseconds(50);
// Time in which mpirun ends by itself after SIGTERM: it gives the ranks a second. It does not end if another
// host is lost.
constexpr absl::Duration kTerminateLimit = absl::Seconds(5);
// Helpers of mpirun end shortly after it.
constexpr absl::Duration kGrace = absl::Seconds(1);

AttemptEnd EndOf(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {EndKind::kKilled, WTERMSIG(wait_status)};
  return {EndKind::kExited, WEXITSTATUS(wait_status)};
}

// A stop request that mpirun passes on may reach a rank of another host that is not set up yet, and it may
// reach mpirun when it has nothing else to do.
bool IsEndByStopSignal(const AttemptEnd& end) {
  return end.value == (end.kind == EndKind::kKilled ? kStopSignal : kExitSignalBase + kStopSignal);
}

// Asks the daemon to end, so that it also ends the daemons of other hosts. Kills it if it does not.
void Terminate(DaemonProcess& daemon, const SignalQueue& signals, Requests& requests) {
  daemon.Signal(SIGTERM);
  const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(kTerminateLimit);
  while (!daemon.Poll() && Clock::now() < end) {
    const std::optional<int> signal = signals.Next(kShortestInterval);
    if (signal && *signal != SIGCHLD) requests.Add(*signal);
  }
  daemon.Signal(SIGKILL);
}

// Detects that a daemon has lost another host. The daemon then waits for that host without a deadline,
// although its own ranks, or the daemon of a third host, have ended. If no host is lost, all of them end
// together, once a reader has taken their output.
class LossWatch {
 public:
  explicit LossWatch(const DaemonLimits& limits) : limits_(limits) {}
  bool had_ranks() const { return had_ranks_; }
  // True if the ranks of this host, or an agent, have ended longer ago than the limit, and no reader has been
  // waited for since.
  bool Expired(const DaemonChildren& children) {
    had_ranks_ = had_ranks_ || !children.ranks.empty();
    const size_t agents = children.agent_hosts.size();
    most_agents_ = std::max(most_agents_, agents);
    const bool ranks_ended = had_ranks_ && children.ranks.empty();
    if ((!ranks_ended && agents == most_agents_) || limits_.waits_for_reader()) {
      ending_since_.reset();
      return false;
    }
    if (!ending_since_) ending_since_ = Clock::now();
    return absl::FromChrono(Clock::now() - *ending_since_) >= limits_.loss;
  }

 private:
  const DaemonLimits& limits_;
  bool had_ranks_ = false;
  size_t most_agents_ = 0;
  std::optional<Clock::time_point> ending_since_;
};

AttemptEnd WaitForEnd(DaemonProcess& daemon, const SignalQueue& signals, Requests& requests,
                      StartWatch& start, LossWatch& loss) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    if (const std::optional<int> status = daemon.Poll()) return EndOf(*status);
    const DaemonChildren children = daemon.Children();
    if (!start.started()) start.Update(children, daemon.ConnectedDaemons());
    requests.Deliver(daemon, children.ranks, !start.is_waiting());
    if (requests.end_at_once()) {
      Terminate(daemon, signals, requests);
      return {EndKind::kExited, kExitInterrupted};
    }
    if (start.Expired(absl::FromChrono(Clock::now() - begin))) {
      AttemptEnd end{EndKind::kNotStarted};
      end.cause = start.Cause();
      Terminate(daemon, signals, requests);
      return end;
    }
    if (loss.Expired(children)) {
      daemon.Signal(SIGKILL);
      return {requests.ranks_are_local() ? EndKind::kHung : EndKind::kHostLost};
    }
    const absl::Duration interval =
        requests.pending()
            ? kPendingInterval
            : std::clamp(absl::FromChrono(Clock::now() - begin) / 10, kShortestInterval, kLongestInterval);
    const std::optional<int> signal = signals.Next(interval);
    if (signal && *signal != SIGCHLD) requests.Add(*signal);
  }
}

}  // namespace

SignalQueue::SignalQueue(const std::set<int>& signals) : signals_{} {
  sigemptyset(&signals_);
  for (const int signal : signals) sigaddset(&signals_, signal);
  // A program before exec may have ignored it. The kernel would then reap the children itself.
  if (signals.contains(SIGCHLD)) std::signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_BLOCK, &signals_, nullptr);
}

std::optional<int> SignalQueue::Next(absl::Duration timeout) const {
  const timespec limit = absl::ToTimespec(timeout);
  const int signal = sigtimedwait(&signals_, nullptr, &limit);
  return signal > 0 ? std::optional(signal) : std::nullopt;
}

bool Requests::Add(int signal) {
  if (signal == kSaveSignal) {
    save_pending_ = true;
    return false;
  }
  stop_pending_ = stop_pending_ || !stop_requested();
  const bool first = stop_signals_.insert(signal).second;
  // A terminal that closes causes two SIGHUP: its shell and the kernel send one each. A rank, too, takes
  // kStopSignal any number of times.
  if (!first && signal != SIGHUP && signal != kStopSignal) end_at_once_ = true;
  return signal != kLostReaderSignal;
}

void Requests::Deliver(DaemonProcess& daemon, const std::vector<pid_t>& ranks, bool started) {
  const auto send = [&](int signal) {
    bool sent = false;
    for (const pid_t rank : ranks) sent = (TakesSignal(rank, signal) && kill(rank, signal) == 0) || sent;
    return sent;
  };
  // Before mpirun takes the signals, and again when it is about to end, they would kill it.
  const auto send_to_mpirun = [&](int signal) {
    const bool sent = TakesSignal(daemon.pid(), signal);
    if (sent) daemon.Signal(signal);
    return sent;
  };
  const bool remote = ranks.empty() && !ranks_are_local_;
  if (remote && !started) {
    end_at_once_ = end_at_once_ || stop_pending_;
    return;
  }
  if (save_pending_) save_pending_ = !(remote ? send_to_mpirun(kSaveSignal) : send(kSaveSignal));
  if (!stop_pending_) return;
  stop_pending_ = remote;
  if (!remote) {
    if (send(kStopSignal)) return;
    const bool ranks_ended = started && daemon.Children().ranks.empty();  // `ranks` may be out of date.
    stop_pending_ = ranks_ended && !user_stops();
    end_at_once_ = end_at_once_ || !stop_pending_;
  } else if (const Clock::time_point now = Clock::now(); now >= next_stop_) {
    // mpirun drops the signal if the ranks do not exist yet, so it is repeated until the run has ended.
    send_to_mpirun(kStopSignal);
    next_stop_ = now + absl::ToChronoNanoseconds(kLongestInterval);
  }
}

void Requests::EndAttempt() { save_pending_ = false; }

AttemptEnd Supervise(DaemonProcess daemon, const SignalQueue& signals, Requests& requests,
                     const DaemonLimits& limits) {
  StartWatch start(limits.start, requests.ranks_are_local());
  LossWatch loss(limits);
  AttemptEnd end = WaitForEnd(daemon, signals, requests, start, loss);
  // A stop request ends mpirun with exit code 0 if no daemon of another host has connected to it.
  const bool ended_before_ranks = !start.started() && ExitCodeOf(end) == kExitDone;
  if (requests.stop_requested() && (IsEndByStopSignal(end) || ended_before_ranks)) {
    end = {EndKind::kExited, kExitInterrupted};
  }
  daemon.EndDescendants(kGrace);
  requests.EndAttempt();
  end.started_no_rank = !loss.had_ranks();
  end.stop_requested = requests.stop_requested();
  return end;
}

}  // namespace weft::internal
