// Threads around the core: whoever holds its lock polls. A progress thread keeps things going, threads that
// wait help, and data moves outside the lock.
//
// Note [Who polls]
// A waiter polls and moves data itself, and the progress thread stays out of its way. Without a waiter the
// progress thread polls: woken by the node's doorbell for node-local traffic, by a short nap while the wire
// is in use (nobody rings there). When nothing is under way it parks until a submission: to wake it costs no
// more than a look around in between would, which takes the core from a rank that computes. One that merely
// makes way for a waiter is left alone by a submission that can do nothing but wait for peers of the node:
// whoever submits small operations and waits for each would pay for waking it every time. It looks around by
// itself a moment later.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/time/time.h>

#include "src/comm/engine/engine_core.h"
#include "weft/mesh/runtime.h"

namespace weft {

class EngineShell {
 public:
  // `node` is the core's link; the core is made and replaced (after a failure) by the owner. Both must
  // outlive the shell, as must the runtime.
  EngineShell(Runtime& runtime, NodeLink& node, int rank);
  ~EngineShell();

  void Start(std::unique_ptr<EngineCore> core);
  // Stops the progress thread.
  void Stop();

  // Lock-free; the core takes it at its next turn, which this tries to be.
  void Submit(std::shared_ptr<OperationRecord> record);

  enum class Event : uint8_t { kReady, kReleased };
  // Polls until the event. Errors: the operation's, or kDeadlineExceeded. `last_resort`: nobody will wait for
  // longer than this; the error then also names the ranks that do not even give a sign of life, for which it
  // waits a little longer.
  absl::Status Wait(const std::shared_ptr<OperationRecord>& record, Event event, absl::Time deadline,
                    bool last_resort);
  // Polls until nothing is under way. Errors: kDeadlineExceeded.
  absl::Status Drain(absl::Time deadline);

  // Runs `body` on the core under its lock.
  template <typename F>
  auto WithCore(F&& body) {
    const std::lock_guard lock(mutex_);
    TakeSubmissions();
    return body(*core_);
  }
  // Waits until no data is moved any more, if the core has failed; it then starts no more.
  void AwaitQuiet();
  // After a failure: waits until nothing comes in from other nodes any more that was on its way. Errors:
  // kDeadlineExceeded (names the ranks).
  absl::Status AwaitArrivals(absl::Time deadline);
  // Puts a new core in the place of a failed one.
  void Replace(std::unique_ptr<EngineCore> core);

  int64_t wait_ns() const { return wait_ns_.load(std::memory_order_relaxed); }

 private:
  struct TurnResult {
    bool advanced;
    bool idle;       // Nothing is under way.
    bool working;    // Something is, and it is not only peers that have yet to release.
    bool has_tasks;  // Data could be moved now.
    bool wire_busy;
  };
  TurnResult Turn();
  TurnResult TurnLocked();
  void TakeSubmissions();
  bool Reached(const OperationRecord& record, Event event) const;
  absl::Status DeadlineError(const OperationRecord& record, Event event, bool last_resort);
  // Polls until `done`; false at the deadline.
  bool PollUntil(const std::function<bool()>& done, absl::Time deadline);
  void RunProgressThread();
  void WakeProgressThread();

  Runtime& runtime_;
  NodeLink& node_;
  const int rank_;
  std::mutex mutex_;
  std::unique_ptr<EngineCore> core_;
  int moving_ = 0;  // Tasks being run.

  std::atomic<OperationRecord*> submitted_{nullptr};  // A stack.
  std::atomic<bool> failed_{false};
  std::atomic<int> waiters_{0};
  std::atomic<int64_t> wait_ns_{0};

  // The progress thread sleeps on this word, or on the node's doorbell.
  enum class Rest : uint8_t {
    kNone,
    kBesideWaiter,  // For a moment, as somebody waits and polls,
    kParked,        // or until it is woken.
  };
  std::atomic<uint32_t> progress_bell_{0};
  std::atomic<Rest> rest_{Rest::kNone};
  std::atomic<bool> stop_{false};
  std::unique_ptr<Runtime::Task> progress_;
};

}  // namespace weft
