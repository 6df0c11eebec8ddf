#include "src/comm/engine/engine_shell.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "weft/core/status.h"
#include "weft/mesh/unpaused_clock.h"

namespace weft {
namespace {

// Longest sleep on the rank's doorbell.
constexpr int64_t kMaxDoorbellWaitNs = 20 * kMillisecond;
// Longest sleep of a parked progress thread.
constexpr int64_t kMaxParkNs = 250 * kMillisecond;
// Longest inquiry after a missed deadline: the ranks that are asked may find a silent one themselves.
constexpr int64_t kInquiryNs = 2 * LateRanks::kAnswerNs;
static_assert(LateRanks::kAnswerNs == 4 * kMaxParkNs, "a rank must answer although its thread is parked");

}  // namespace

EngineShell::EngineShell(Runtime& runtime, NodeLink& node, TraceLog& trace, int rank, bool has_core)
    : runtime_(runtime), node_(node), trace_(trace), rank_(rank), times_(TimesOf(runtime, has_core)) {}

absl::Status EngineShell::Start(std::unique_ptr<EngineCore> core) {
  {
    const MutexLock lock(mutex_);
    core_ = std::move(core);
  }
  WEFT_ASSIGN_OR_RETURN(progress_,
                        runtime_.Start("the progress of collectives", [this] { RunProgressThread(); }));
  return absl::OkStatus();
}

void EngineShell::Stop() {
  if (progress_ == nullptr) return;
  stop_.store(true);
  WakeProgressThread();
  node_.Ring(rank_);
  progress_.reset();
  Report(FinishCallbacks(Deadline(runtime_, absl::ZeroDuration())));  // No other thread calls any.
  ReleasedMemory memory;  // Its destructors may call the engine, so the core must live, and the lock be free.
  const MutexLock lock(mutex_);
  core_->MoveAllMemoryTo(memory);
}

int64_t EngineShell::Queue(std::shared_ptr<OperationRecord> record) {
  const int64_t now = runtime_.NowNs();
  record->submitted_ns = now;
  OperationRecord* raw = record.get();
  raw->self = std::move(record);
  raw->next = submitted_.load(std::memory_order_relaxed);
  // Sequentially consistent, like the count of sleepers: see WakeSleepers.
  while (!submitted_.compare_exchange_weak(raw->next, raw, std::memory_order_seq_cst,
                                           std::memory_order_relaxed)) {
  }
  return now;
}

void EngineShell::Kick(int64_t now_ns) {
  // True if the lock is taken: its holder may have taken the submissions before this one was pushed.
  bool has_work = true;
  bool is_idle = false;
  while (mutex_.try_lock()) {
    std::optional<DataTask> task;
    {
      const MutexLock lock(mutex_, std::adopt_lock);
      TakeSubmissions();
      const PollResult poll = PollLocked(now_ns);
      if (poll.has_tasks) task = core_->PopImmediateTask();
      if (task) ++running_tasks_;
      has_work = poll.has_tasks || poll.uses_wire || core_->has_callbacks();
      // This thread may hold a lock that the memory's destructors take.
      is_idle = poll.is_idle && !has_work && !core_->has_released_memory();
    }
    if (!task) break;
    RunCounted(*task);
    now_ns = runtime_.NowNs();
    has_work = true;  // Until the next poll has continued the operation.
    is_idle = false;
  }
  if (has_work) WakeSleepers();
  // The increment comes before the load: a progress thread that parks after the load sees it and does not
  // sleep.
  progress_wakeups_.fetch_add(1, std::memory_order_seq_cst);
  const ProgressSleep sleep = progress_sleep_.load(std::memory_order_seq_cst);
  const bool must_wake =
      (sleep == ProgressSleep::kParked && !is_idle) || (sleep == ProgressSleep::kBesideWaiter && has_work);
  if (must_wake) WakeSleepingProgressThread();
}

void EngineShell::TakeSubmissions() {
  if (submitted_.load(std::memory_order_seq_cst) == nullptr) return;
  OperationRecord* newest = submitted_.exchange(nullptr, std::memory_order_acquire);
  OperationRecord* oldest = nullptr;
  while (newest != nullptr) {
    OperationRecord* earlier = std::exchange(newest->next, oldest);
    oldest = std::exchange(newest, earlier);
  }
  while (oldest != nullptr) {
    OperationRecord* later = oldest->next;
    core_->Submit(std::move(oldest->self));
    oldest = later;
  }
}

EngineShell::PollResult EngineShell::PollLocked(int64_t now_ns) {
  const bool advanced = core_->Poll(now_ns);
  if (core_->TakeWakeUp()) WakeSleepers();
  const bool sends = core_->has_unsent_control_messages();
  return {advanced,
          core_->is_idle() && !sends,
          core_->has_local_work(),
          core_->has_tasks(),
          core_->must_be_polled() || sends,
          now_ns,
          core_->poll_interval_ns(),
          core_->has_fast_link()};
}

EngineShell::PollResult EngineShell::PollAndRunTask(int64_t now_ns, const AwaitedEvent* raised) {
  std::optional<DataTask> task;
  ReleasedMemory released;
  std::vector<CompletedCallback> callbacks;
  PollResult result{};
  {
    const MutexLock lock(mutex_);
    TakeSubmissions();
    if (raised != nullptr) core_->RaisePriority(*raised->record, raised->event == Event::kReleased);
    result = PollLocked(now_ns);
    core_->MoveReleasedMemoryTo(released);
    if (core_->has_callbacks()) {
      callbacks = core_->TakeCallbacks();
      ++running_callbacks_;
    } else if (result.has_tasks) {
      task = core_->PopTask();
    }
    if (task) ++running_tasks_;
  }
  if (!callbacks.empty()) {
    CallCounted(std::move(callbacks));
    result.advanced = true;
  } else if (task) {
    RunCounted(*task);
    result.advanced = true;
  }
  released.clear();  // Not while a task counts as running: a destructor may wait for AwaitRunningTasks.
  if (result.advanced) result.now_ns = runtime_.NowNs();  // Data may have moved for long.
  return result;
}

void EngineShell::RunCounted(const DataTask& task) {
  absl::Status moved;
  runtime_.Move({TaskBytes(task.body), static_cast<size_t>(task.cross_domain_bytes)},
                [&] { moved = RunTask(task.body); });
  const MutexLock lock(mutex_);
  --running_tasks_;
  core_->FinishTask(task, moved);
  // The next poll continues the operation. A waiting thread that should do that may be asleep.
  if (waiters_.load() > 0) WakeSleepers();
}

void EngineShell::CallCounted(std::vector<CompletedCallback> callbacks) {
  for (const CompletedCallback& callback : callbacks) callback.done(callback.status);
  callbacks.clear();
  const MutexLock lock(mutex_);
  --running_callbacks_;
}

bool EngineShell::PollUntil(const AwaitedEvent* awaited, absl::FunctionRef<bool()> done,
                            absl::Duration timeout) {
  // A wait for a past event takes no lock, and does not count in wait_ns.
  if (done()) {
    CountPastWait();
    return true;
  }
  const int64_t begin = runtime_.NowNs();
  const int64_t limit =
      begin + std::max<int64_t>(0, absl::ToInt64Nanoseconds(std::min(timeout, kLongestWait)));
  waits_.fetch_add(1, std::memory_order_relaxed);
  waiters_.fetch_add(1);
  bool reached = true;
  bool counts_as_sleeper = false;
  uint32_t seen = node_.Doorbell();
  PollResult poll = PollAndRunTask(begin, awaited);
  WaitSteps steps(times_, begin);
  UnpausedClock clock(begin);
  while (!done()) {
    const int64_t now = poll.now_ns;
    switch (steps.Next({poll.advanced, poll.uses_wire, poll.has_fast_link, now})) {
      case WaitSteps::Step::kPoll:
        break;
      case WaitSteps::Step::kWatchDoorbell:
        PollDoorbell(seen);
        break;
      case WaitSteps::Step::kYield:
        runtime_.Yield();
        break;
      case WaitSteps::Step::kSleep: {
        if (!std::exchange(counts_as_sleeper, true)) {
          sleepers_.fetch_add(1, std::memory_order_seq_cst);
          break;  // Polls once more.
        }
        const int64_t interval =
            poll.uses_wire
                ? WirePollInterval(steps.idle_ns(now), CutToWire(kWirePollIntervalNs, poll.wire_interval_ns))
                : kMaxDoorbellWaitNs;
        node_.Wait(seen, std::min(interval, std::max<int64_t>(1, limit - now)));
        break;
      }
    }
    if (clock.Read(now) >= limit && !done()) {
      reached = false;
      break;
    }
    seen = node_.Doorbell();
    poll = PollAndRunTask(runtime_.NowNs());
  }
  waiters_.fetch_sub(1);
  if (counts_as_sleeper) sleepers_.fetch_sub(1, std::memory_order_relaxed);
  if (poll.has_local_work) WakeSleepingProgressThread();
  wait_ns_.fetch_add(poll.now_ns - begin, std::memory_order_relaxed);
  trace_.AddWait(awaited == nullptr ? nullptr : awaited->record, begin, poll.now_ns);
  return reached;
}

void EngineShell::PollDoorbell(uint32_t seen) const {
  constexpr int kLoads = 512;
  for (int i = 0; i < kLoads && node_.Doorbell() == seen; ++i) continue;
}

absl::Status EngineShell::DeadlineError(const AwaitedEvent& awaited, bool asks_for_late_ranks) {
  const OperationRecord& record = *awaited.record;
  std::string others;
  if (asks_for_late_ranks) {
    const EngineCore::Inquiry inquiry = WithCore([&](EngineCore& core) { return core.Inquire(record); });
    PollUntil(
        &awaited,
        [&] {
          return HasOccurred(awaited) || WithCore([&](EngineCore& core) { return core.IsAnswered(inquiry); });
        },
        absl::Nanoseconds(kInquiryNs));
    if (HasOccurred(awaited)) return absl::OkStatus();
    others = WithCore([&](EngineCore& core) { return core.DescribeInquiry(inquiry); });
  }
  return WithCore([&](EngineCore& core) { return core.DeadlineError(record, others); });
}

absl::StatusOr<bool> EngineShell::PollWithChecks(const AwaitedEvent& awaited, absl::Duration timeout,
                                                 const Work::WaitCheck& check) {
  constexpr absl::Duration kInterval = absl::Milliseconds(50);
  const auto has_occurred = [&] { return HasOccurred(awaited); };
  if (!check) return PollUntil(&awaited, has_occurred, timeout);
  UnpausedDeadline deadline(runtime_, timeout);
  while (!PollUntil(&awaited, has_occurred, std::min(deadline.Left(), kInterval))) {
    if (deadline.HasPassed()) return false;
    WEFT_RETURN_IF_ERROR(check());
  }
  return true;
}

absl::Status EngineShell::Wait(OperationRecord& record, Event event, absl::Duration timeout,
                               bool asks_for_late_ranks, const Work::WaitCheck& check) {
  const AwaitedEvent awaited{&record, event};
  WEFT_ASSIGN_OR_RETURN(const bool has_occurred, PollWithChecks(awaited, timeout, check));
  if (!has_occurred) WEFT_RETURN_IF_ERROR(DeadlineError(awaited, asks_for_late_ranks));
  const OperationState state = record.State();
  if (state == OperationState::kReleased) return absl::OkStatus();
  if (state != OperationState::kFailed && event == Event::kReady) return absl::OkStatus();
  AwaitRunningTasks();  // Afterwards no thread of this rank accesses the caller's buffers.
  return record.error;
}

void EngineShell::Then(OperationRecord& record, CompletionCallback done) {
  if (WithCore([&](EngineCore& core) { return core.AddCallback(record, done); })) return;
  done(record.IsReady() ? absl::OkStatus() : record.error);
}

bool EngineShell::Leave() {
  return WithCore([](EngineCore& core) {
    if (const absl::Status left = core.Leave(); !left.ok()) core.Fail(left);
    return core.has_left_lanes();
  });
}

absl::Status EngineShell::FinishLeaving(const Deadline& deadline) {
  PollUntil(
      nullptr, [this] { return Leave(); }, deadline.Left());
  return WithCore([](EngineCore& core) { return core.CheckHasLeft(); });
}

void EngineShell::FlushControlMessages(const Deadline& deadline) {
  while (WithCore([](EngineCore& core) { return core.FlushControlMessages(); }) && !deadline.HasPassed())
    runtime_.Yield();
}

absl::Status EngineShell::Drain(absl::Duration timeout) {
  const auto done = [&] { return WithCore([](EngineCore& core) { return core.is_idle(); }); };
  if (PollUntil(nullptr, done, timeout)) return absl::OkStatus();
  return WithCore([](EngineCore& core) {
    const OperationRecord* const record = core.FindUnfinished();
    constexpr std::string_view kRemedy = "wait for every Work before you destroy its engine; ";
    return record == nullptr ? absl::OkStatus() : core.DeadlineError(*record, kRemedy);
  });
}

void EngineShell::AwaitRunningTasks() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (running_tasks_ == 0 || core_->status().ok()) return;
    }
    runtime_.Yield();
  }
}

absl::Status EngineShell::FinishCallbacks(const Deadline& deadline) {
  while (true) {
    std::vector<CompletedCallback> callbacks;
    {
      const MutexLock lock(mutex_);
      callbacks = core_->TakeCallbacks();
      if (callbacks.empty() && running_callbacks_ == 0) return absl::OkStatus();
      if (!callbacks.empty()) ++running_callbacks_;
    }
    if (!callbacks.empty()) {
      CallCounted(std::move(callbacks));
    } else if (deadline.HasPassed()) {
      return absl::DeadlineExceededError(
          "a callback of Work::Then has not returned; it must not wait, nor reset or destroy the engine");
    } else {
      runtime_.SleepFor(kMillisecond / 10);
    }
  }
}

std::unique_ptr<EngineCore> EngineShell::Replace(std::unique_ptr<EngineCore> core) {
  const MutexLock lock(mutex_);
  TakeSubmissions();
  core_->ReleaseQuarantine();
  core_.swap(core);
  return core;
}

void EngineShell::WakeProgressThread() {
  progress_wakeups_.fetch_add(1, std::memory_order_seq_cst);
  runtime_.WakeAll(progress_wakeups_);
}

void EngineShell::WakeSleepingProgressThread() {
  if (progress_sleep_.exchange(ProgressSleep::kNone, std::memory_order_seq_cst) != ProgressSleep::kNone)
    WakeProgressThread();
}

void EngineShell::RunProgressThread() {
  int64_t idle_since = runtime_.NowNs();
  int initial_polls = 0;
  uint32_t seen_waits = 0;
  const auto sleep = [&](ProgressSleep state, uint32_t seen, int64_t ns) {
    progress_sleep_.store(state, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    if (!stop_.load()) runtime_.SleepOn(progress_wakeups_, seen, ns);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    progress_sleep_.store(ProgressSleep::kNone, std::memory_order_relaxed);
    idle_since = runtime_.NowNs();  // Meanwhile another thread polled, or the engine was idle.
  };
  sleepers_.fetch_add(1, std::memory_order_seq_cst);  // But during the sleeps above.
  while (!stop_.load()) {
    const uint32_t wakeups = progress_wakeups_.load(std::memory_order_acquire);
    const uint32_t doorbell = node_.Doorbell();
    if (waiters_.load() > 0) {
      sleep(ProgressSleep::kBesideWaiter, wakeups, times_.beside_waiter_ns);
      continue;
    }
    const PollResult poll = PollAndRunTask(runtime_.NowNs());
    if (poll.advanced) {
      idle_since = runtime_.NowNs();
    } else if (poll.is_idle) {
      const uint32_t waits = waits_.load(std::memory_order_relaxed);
      const bool is_series = waits - std::exchange(seen_waits, waits) >= times_.series_waits;
      if (is_series && times_.after_wait_ns > 0) {
        sleep(ProgressSleep::kBesideWaiter, wakeups, times_.after_wait_ns);
      } else {
        sleep(ProgressSleep::kParked, wakeups, kMaxParkNs);
      }
      initial_polls = kInitialWirePolls;
    } else if (!poll.uses_wire) {
      node_.Wait(doorbell, kMaxDoorbellWaitNs);
    } else {
      const int64_t shortest = initial_polls > 0 ? kInitialWirePollIntervalNs : kUnattendedWirePollIntervalNs;
      if (initial_polls > 0) --initial_polls;
      node_.Wait(doorbell,
                 WirePollInterval(runtime_.NowNs() - idle_since, CutToWire(shortest, poll.wire_interval_ns)));
    }
  }
}

}  // namespace weft
