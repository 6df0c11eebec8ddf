#include "src/comm/engine/engine_shell.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kMicrosecond = 1'000;
constexpr int64_t kMillisecond = 1'000'000;

// A waiter yields for so long before it sleeps: about what waking a sleeper costs.
constexpr int64_t kYieldNs = 30 * kMicrosecond;
// Between two looks at the wire: the longer nothing has come, the rarer, so that a nap adds little to a wait.
// Where nobody waits, each look takes its time from a rank that computes, and the system's buffers hold what
// arrives meanwhile.
constexpr int64_t kWirePollIntervalNs = 50 * kMicrosecond;
constexpr int64_t kUnawaitedWireNapNs = 250 * kMicrosecond;
// But when an idle engine begins with something, what peers have to say to it comes soon: the first naps.
constexpr int64_t kFirstWireNapNs = 100 * kMicrosecond;
constexpr int kFirstWireNaps = 4;
constexpr int64_t kLongestWireNapNs = 500 * kMicrosecond;
constexpr int64_t kWireNapsAWait = 16;
int64_t WireNap(int64_t waited_ns, int64_t shortest_ns) {
  return std::clamp(waited_ns / kWireNapsAWait, shortest_ns, kLongestWireNapNs);
}
// Longest sleep on the doorbell: a look now and then costs nothing.
constexpr int64_t kBellNapNs = 20 * kMillisecond;
// A parked progress thread looks around so often.
constexpr int64_t kLongestSleepNs = 1000 * kMillisecond;
// Deadlines behind this are none: the sum of a time and a deadline must fit 64 bits.
constexpr absl::Duration kForever = absl::Hours(24 * 365);
// What a rank has to give a sign of life, once it is asked: longer than the longest sleep of a progress
// thread.
constexpr int64_t kSignOfLifeNs = 3 * kLongestSleepNs;
// While somebody waits, the progress thread looks in so often.
constexpr int64_t kBesideWaiterNapNs = kMillisecond;

}  // namespace

EngineShell::EngineShell(Runtime& runtime, NodeLink& node, int rank)
    : runtime_(runtime), node_(node), rank_(rank) {}

EngineShell::~EngineShell() { Stop(); }

void EngineShell::Start(std::unique_ptr<EngineCore> core) {
  core_ = std::move(core);
  progress_ = runtime_.Start([this] { RunProgressThread(); });
}

void EngineShell::Stop() {
  if (progress_ == nullptr) return;
  stop_.store(true);
  WakeProgressThread();
  node_.Ring(rank_);
  progress_.reset();
}

void EngineShell::Submit(std::shared_ptr<OperationRecord> record) {
  record->submitted_ns = runtime_.NowNs();
  OperationRecord* raw = record.get();
  raw->self = std::move(record);
  raw->next = submitted_.load(std::memory_order_relaxed);
  while (!submitted_.compare_exchange_weak(raw->next, raw, std::memory_order_release,
                                           std::memory_order_relaxed)) {
  }
  bool progress_thread_needed = true;  // Whoever has the lock may have looked at the submissions before.
  if (mutex_.try_lock()) {
    const std::lock_guard lock(mutex_, std::adopt_lock);
    const TurnResult turn = TurnLocked();
    progress_thread_needed = turn.has_tasks || turn.wire_busy;
  }
  if (progress_thread_needed) node_.Ring(rank_);
  // The bell goes first: a progress thread that parks after the look at `rest_` finds that it has rung.
  progress_bell_.fetch_add(1, std::memory_order_seq_cst);
  const Rest rest = rest_.load(std::memory_order_seq_cst);
  if (rest == Rest::kParked || (rest == Rest::kBesideWaiter && progress_thread_needed)) WakeProgressThread();
}

void EngineShell::TakeSubmissions() {
  OperationRecord* newest = submitted_.exchange(nullptr, std::memory_order_acquire);
  std::vector<OperationRecord*> records;
  for (OperationRecord* record = newest; record != nullptr; record = record->next) records.push_back(record);
  for (auto it = records.rbegin(); it != records.rend(); ++it) core_->Submit(std::move((*it)->self));
}

EngineShell::TurnResult EngineShell::TurnLocked() {
  TakeSubmissions();
  const bool advanced = core_->Poll(runtime_.NowNs());
  failed_.store(!core_->status().ok(), std::memory_order_release);
  const bool spreading = core_->spreading();
  return {advanced, core_->idle() && !spreading, core_->working(), core_->has_tasks(),
          core_->wire_busy() || spreading};
}

EngineShell::TurnResult EngineShell::Turn() {
  std::optional<DataTask> task;
  TurnResult result{};
  {
    const std::lock_guard lock(mutex_);
    result = TurnLocked();
    task = core_->TakeTask();
    if (task) ++moving_;
  }
  if (!task) return result;
  absl::Status moved;
  runtime_.Move(TaskBytes(*task), [&] { moved = RunTask(*task); });
  const std::lock_guard lock(mutex_);
  --moving_;
  core_->FinishTask(*task, moved);
  result.advanced = true;
  // What follows from it is the next turn's; a waiter on another thread may be asleep by now.
  if (waiters_.load() > 0) node_.Ring(rank_);
  return result;
}

bool EngineShell::PollUntil(const std::function<bool()>& done, absl::Time deadline) {
  // Told apart from a wait that is over at once, which costs nothing.
  if (done()) return true;
  const int64_t begin = runtime_.NowNs();
  const absl::Duration patience = std::min(deadline - runtime_.Now(), kForever);
  const int64_t limit = begin + std::max<int64_t>(0, absl::ToInt64Nanoseconds(patience));
  waiters_.fetch_add(1);
  int64_t idle_since = begin;
  bool reached = true;
  TurnResult turn{};
  while (true) {
    const uint32_t seen = node_.Doorbell();
    turn = Turn();
    if (done()) break;
    const int64_t now = runtime_.NowNs();
    if (turn.advanced) {
      idle_since = now;
      // With more ranks than cores another has to fill the wire, before this one's time slice is over.
      if (turn.wire_busy) runtime_.Yield();
    } else if (now - idle_since < kYieldNs) {
      runtime_.Yield();
    } else {
      const int64_t nap = turn.wire_busy ? WireNap(now - idle_since, kWirePollIntervalNs) : kBellNapNs;
      node_.Wait(seen, std::min(nap, std::max<int64_t>(1, limit - now)));
    }
    if (now >= limit && !done()) {
      reached = false;
      break;
    }
  }
  waiters_.fetch_sub(1);
  if (turn.working && rest_.load(std::memory_order_seq_cst) != Rest::kNone) WakeProgressThread();
  wait_ns_.fetch_add(runtime_.NowNs() - begin, std::memory_order_relaxed);
  return reached;
}

bool EngineShell::Reached(const OperationRecord& record, Event event) const {
  const OperationState state = record.State();
  if (state == OperationState::kFailed || state == OperationState::kReleased) return true;
  if (state != OperationState::kReady) return false;
  return event == Event::kReady || failed_.load(std::memory_order_acquire);
}

absl::Status EngineShell::DeadlineError(const OperationRecord& record, Event event, bool last_resort) {
  std::string signs;  // In front: what other nodes are told has limited room.
  if (last_resort) {
    WithCore([](EngineCore& core) {
      core.RequestHeartbeat();
      return 0;
    });
    const auto silent = [this] { return WithCore([](EngineCore& core) { return core.Silent(); }); };
    const bool all_live = PollUntil([&] { return Reached(record, event) || silent().empty(); },
                                    runtime_.Now() + absl::Nanoseconds(kSignOfLifeNs));
    if (Reached(record, event)) return absl::OkStatus();
    if (!all_live) signs = absl::StrCat("no sign of life from rank(s) ", absl::StrJoin(silent(), ", "), "; ");
  }
  return WithCore([&](EngineCore& core) {
    return absl::DeadlineExceededError(
        absl::StrCat(Describe(record), ": deadline passed; ", signs, core.WaitingFor(record)));
  });
}

absl::Status EngineShell::Wait(const std::shared_ptr<OperationRecord>& record, Event event,
                               absl::Time deadline, bool last_resort) {
  if (!Reached(*record, event)) {
    WithCore([&](EngineCore& core) {
      core.Raise(record->lane, record->descriptor.sequence, event == Event::kReleased);
      return 0;
    });
    if (!PollUntil([&] { return Reached(*record, event); }, deadline)) {
      WEFT_RETURN_IF_ERROR(DeadlineError(*record, event, last_resort));
    }
  }
  const OperationState state = record->State();
  if (state == OperationState::kReleased) return absl::OkStatus();
  if (state != OperationState::kFailed && event == Event::kReady) return absl::OkStatus();
  AwaitQuiet();  // No thread of this rank touches the caller's buffers any more.
  return record->error;
}

absl::Status EngineShell::Drain(absl::Time deadline) {
  const auto done = [&] { return WithCore([](EngineCore& core) { return core.idle(); }); };
  if (PollUntil(done, deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError("operations are still under way");
}

void EngineShell::AwaitQuiet() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (moving_ == 0 || core_->status().ok()) return;
    }
    runtime_.Yield();
  }
}

absl::Status EngineShell::AwaitArrivals(absl::Time deadline) {
  while (true) {
    const std::set<int> peers = WithCore([](EngineCore& core) { return core.PeersStillSending(); });
    if (peers.empty()) return absl::OkStatus();
    if (runtime_.Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("data of rank(s) ", absl::StrJoin(peers, ", "),
                                                      " was on its way and does not arrive"));
    }
    runtime_.SleepFor(kWirePollIntervalNs);
  }
}

void EngineShell::Replace(std::unique_ptr<EngineCore> core) {
  const std::lock_guard lock(mutex_);
  TakeSubmissions();
  core_->EndQuarantine();
  core_ = std::move(core);
  failed_.store(false, std::memory_order_release);
}

void EngineShell::WakeProgressThread() {
  progress_bell_.fetch_add(1, std::memory_order_seq_cst);
  runtime_.WakeAll(progress_bell_);
}

void EngineShell::RunProgressThread() {
  int64_t idle_since = runtime_.NowNs();
  int first_naps = 0;
  const auto sleep = [&](Rest rest, uint32_t seen, int64_t ns) {
    rest_.store(rest, std::memory_order_seq_cst);
    if (!stop_.load()) runtime_.SleepOn(progress_bell_, seen, ns);
    rest_.store(Rest::kNone, std::memory_order_relaxed);
    idle_since = runtime_.NowNs();  // Others have seen to things, or there was nothing to see to.
  };
  while (!stop_.load()) {
    const uint32_t own_bell = progress_bell_.load(std::memory_order_acquire);
    const uint32_t node_bell = node_.Doorbell();
    if (waiters_.load() > 0) {
      sleep(Rest::kBesideWaiter, own_bell, kBesideWaiterNapNs);
      continue;
    }
    const TurnResult turn = Turn();
    if (turn.advanced) {
      idle_since = runtime_.NowNs();
    } else if (turn.idle) {
      sleep(Rest::kParked, own_bell, kLongestSleepNs);
      first_naps = kFirstWireNaps;
    } else if (!turn.wire_busy) {
      node_.Wait(node_bell, kBellNapNs);
    } else {
      const int64_t shortest = first_naps > 0 ? kFirstWireNapNs : kUnawaitedWireNapNs;
      if (first_naps > 0) --first_naps;
      node_.Wait(node_bell, WireNap(runtime_.NowNs() - idle_since, shortest));
    }
  }
}

}  // namespace weft
