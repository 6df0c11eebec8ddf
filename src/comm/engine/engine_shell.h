// Threads around the core: the progress thread, threads that wait, and the lock that both take.
//
// Note [Progress]
// The engine makes progress when a thread polls the core and runs its tasks.
//   - While a thread waits, that thread polls. The progress thread sleeps, and checks every 125 us, or every
//     millisecond if the ranks of the node share hardware threads, whether a thread still waits.
//   - Without a waiting thread, the progress thread polls. It sleeps on the rank's doorbell while only local
//     peers can wake it, and polls at intervals while the wire is in use, since messages ring no doorbell.
//   - When no operation is unfinished, the progress thread parks until a submission wakes it. Waking it costs
//     no more than one periodic poll, and periodic polls would take the core from a rank that computes.
//   - A submission does not wake a progress thread that sleeps beside a waiting thread, unless it leaves
//     tasks or callbacks, or the wire is in use. Otherwise a thread that submits small operations and waits
//     for each would pay for a wake-up each time, though it moves the data itself. Once no thread waits, the
//     progress thread polls after its sleep.
//     Likewise, an idle progress thread sleeps for 125 us before it parks if a thread has waited since it
//     last looked. Otherwise each small operation would find it parked, and wake it. Waits for past events
//     count: a progress thread that a submission wakes may take the core from the thread that submits, and
//     complete the operation before that thread waits. If ranks share hardware threads, it sleeps for a
//     millisecond, and only in a series of waits that are not for past events: each time that it wakes, it
//     takes the hardware thread from a rank.
//   - Until a progress thread that was woken runs, other submissions do not wake it again. A wake-up is a
//     system call, and on a core where another thread polls, it may take milliseconds until it runs. The
//     submission that wakes it changes progress_sleep_ first: in the other order, the thread could park in
//     between, and would then count as awake. Other submitters then skip their wake-up. If the waking thread
//     loses its core before the system call, operations wait until it runs again, or until the sleep of the
//     progress thread ends.
//   - Threads of a rank that sleep on its doorbell count themselves, so that others of the rank ring it only
//     if there are any: peers write the same cache line. A thread counts itself first, polls once more, and
//     sleeps if that poll finds nothing to do. What another thread does is therefore either seen by that
//     poll, or rings.
//   - A submission runs an immediate task itself, if that is the most urgent one. See Note [Last arrival].
//   - A waiting thread polls, then yields, then sleeps (wait_times.h). It polls without yielding only for a
//     time as short as a wake-up, and only if its rank has a hardware thread for itself (RankCpus::Share).
//     If data moves between nodes and ranks share hardware threads, it yields after 200 us. Between two polls
//     it watches its doorbell alone, unless it must poll for what rings no doorbell: a poll of the core takes
//     longer, and takes cache lines from the peer that writes them.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/base/thread_annotations.h>
#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/comm/engine/engine_core.h"
#include "src/comm/engine/wait_times.h"
#include "weft/comm/work.h"
#include "weft/core/mutex.h"
#include "weft/mesh/runtime.h"

namespace weft {

class EngineShell {
 public:
  // `node` is the core's link. `has_core`: this rank has a hardware thread for itself.
  // Lifetime: `runtime`, `node` and `trace` must outlive the shell.
  EngineShell(Runtime& runtime, NodeLink& node, TraceLog& trace, int rank, bool has_core);
  ~EngineShell() { Stop(); }

  // Takes the core and starts the progress thread.
  // Errors: kResourceExhausted (the system gives the process no thread; names the limits).
  absl::Status Start(std::unique_ptr<EngineCore> core) ABSL_LOCKS_EXCLUDED(mutex_);
  // Stops the progress thread. Then calls the callbacks that it has left, and destroys the memory that the
  // core keeps.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Queues the operation: the core takes operations in the order of these calls. Follow it with Kick. Returns
  // the time.
  int64_t Queue(std::shared_ptr<OperationRecord> record);
  // Polls the core if the lock is free, runs immediate tasks, and wakes the progress thread if it is needed.
  // Waits for no other rank. In a simulation the calling fiber may yield. `now_ns`: the time of Queue.
  void Kick(int64_t now_ns) ABSL_LOCKS_EXCLUDED(mutex_);

  enum class Event : uint8_t { kReady, kReleased };
  // Polls until the event, or until `timeout` has passed. `asks_for_late_ranks`: then asks for the ranks that
  // are late or silent, and names them, which takes up to two more seconds. See Note [Late ranks].
  // `check`: called about every 50 ms before; may be null. Errors: the operation's; kDeadlineExceeded; those
  // of `check`.
  absl::Status Wait(OperationRecord& record, Event event, absl::Duration timeout, bool asks_for_late_ranks,
                    const Work::WaitCheck& check) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call it if a thread waits for an event that is past: see Note [Progress].
  void CountPastWait() {
    if (times_.has_core) waits_.fetch_add(1, std::memory_order_relaxed);
  }
  // See Work::Then.
  void Then(OperationRecord& record, CompletionCallback done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells peers that this rank submits nothing more. False if a lane waits for a slot of its descriptor ring.
  // See Note [Leaving].
  bool Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // Polls until all peers have been told. Errors: those of EngineCore::CheckHasLeft.
  absl::Status FinishLeaving(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Polls until all control messages have been sent.
  void FlushControlMessages(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Polls until no operation is unfinished. Errors: kDeadlineExceeded (names an unfinished operation, and the
  //   ranks that it waits for).
  absl::Status Drain(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes the lock, hands the pending submissions to the core, and calls `body` with the core.
  template <typename F>
  auto WithCore(F&& body) ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    TakeSubmissions();
    return body(*core_);
  }
  // If the core has failed: waits until no thread of this rank runs a task. None starts afterwards.
  void AwaitRunningTasks() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls the callbacks that are due, and waits for those that other threads call. If the core has failed, no
  // other one is queued. REQUIRES: not called by a callback. Errors: kDeadlineExceeded (one has not
  // returned).
  absl::Status FinishCallbacks(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Replaces a failed core, which has taken all submissions, and returns it. REQUIRES: FinishCallbacks.
  // Destroy it without a lock: destructors of the memory that it keeps may call the engine.
  std::unique_ptr<EngineCore> Replace(std::unique_ptr<EngineCore> core) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t wait_ns() const { return wait_ns_.load(std::memory_order_relaxed); }

 private:
  struct PollResult {
    bool advanced;
    bool is_idle;         // No operation is unfinished, and no control message is left to send.
    bool has_local_work;  // An operation needs more than releases by peers.
    bool has_tasks;
    bool uses_wire;
    int64_t now_ns;            // The time of the poll, or that after it if it has advanced.
    int64_t wire_interval_ns;  // Of polls of the wire. See Note [Poll intervals].
    bool has_fast_link;        // Slices travel in runs.
  };
  // Destroyed without the lock: the destructors may call the engine.
  using ReleasedMemory = std::vector<std::shared_ptr<void>>;
  // The operation for which a thread waits, and until which event.
  struct AwaitedEvent {
    OperationRecord* record;
    Event event;
  };
  // Polls the core, and calls callbacks of completed operations. Then runs one task. `now_ns`: read before
  // the call. `raised`: an operation whose priority this call raises first, because a thread begins to wait
  // for it; mostly null.
  PollResult PollAndRunTask(int64_t now_ns, const AwaitedEvent* raised = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  PollResult PollLocked(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves the data of a task that this thread has counted in running_tasks_, and finishes it.
  void RunCounted(const DataTask& task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls callbacks, for which this thread has counted itself in running_callbacks_.
  void CallCounted(std::vector<CompletedCallback> callbacks) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeSubmissions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool HasOccurred(const AwaitedEvent& awaited) {
    return awaited.record->HasEnded() || (awaited.event == Event::kReady && awaited.record->IsReady());
  }
  absl::Status DeadlineError(const AwaitedEvent& awaited, bool asks_for_late_ranks)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Polls until `done`. False if `timeout` has passed first. `awaited`: what it waits for; null if that is
  // not one operation.
  bool PollUntil(const AwaitedEvent* awaited, absl::FunctionRef<bool()> done, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Polls until the event, and calls `check`, if there is one, in between. False if `timeout` has passed
  // first. Errors: those of `check`.
  absl::StatusOr<bool> PollWithChecks(const AwaitedEvent& awaited, absl::Duration timeout,
                                      const Work::WaitCheck& check) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns once the doorbell differs from `seen`, or after about a microsecond.
  void PollDoorbell(uint32_t seen) const;
  void RunProgressThread() ABSL_LOCKS_EXCLUDED(mutex_);
  // Wakes the threads of this rank that sleep on its doorbell.
  void WakeSleepers() {
    if (sleepers_.load(std::memory_order_seq_cst) > 0) node_.Ring(rank_);
  }
  void WakeProgressThread();
  // The same if it sleeps and no other thread has woken it. It may take milliseconds until it runs: a thread
  // that polls may have its core.
  void WakeSleepingProgressThread();

  Runtime& runtime_;
  NodeLink& node_;
  TraceLog& trace_;
  const int rank_;
  const WaitTimes times_;
  Mutex mutex_;
  std::unique_ptr<EngineCore> core_ ABSL_GUARDED_BY(mutex_) ABSL_PT_GUARDED_BY(mutex_);
  int running_tasks_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_callbacks_ ABSL_GUARDED_BY(mutex_) = 0;  // Threads that call callbacks.

  std::atomic<OperationRecord*> submitted_{nullptr};  // Stack of operations that the core has not yet taken.
  std::atomic<int> waiters_{0};                       // Threads in PollUntil.
  std::atomic<int> sleepers_{0};                      // Threads that sleep on the doorbell, or soon may.
  std::atomic<uint32_t> waits_{0};                    // Waits of threads. See CountPastWait.
  std::atomic<int64_t> wait_ns_{0};

  enum class ProgressSleep : uint8_t {
    kNone,          // Polls, sleeps on the rank's doorbell, or has been woken.
    kBesideWaiter,  // Sleeps on progress_wakeups_ for a while, because another thread polls, or did.
    kParked,        // Sleeps on progress_wakeups_ until a submission.
  };
  std::atomic<uint32_t> progress_wakeups_{0};  // Futex of the progress thread.
  std::atomic<ProgressSleep> progress_sleep_{ProgressSleep::kNone};
  std::atomic<bool> stop_{false};
  std::unique_ptr<Runtime::Task> progress_;
};

}  // namespace weft
