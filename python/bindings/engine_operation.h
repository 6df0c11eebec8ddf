// An Operation over a Work of the engine.
//
// Thread safety: any thread may call any member. A mutex gives the Work to one thread at a time.
// Lifetime: holds the session.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include <absl/status/status.h>
#include <absl/time/time.h>

#include "python/bindings/session.h"
#include "python/interface/group_collectives.h"
#include "weft/comm/work.h"
#include "weft/mesh/runtime.h"

namespace weft::python {

class EngineOperation final : public Operation, public std::enable_shared_from_this<EngineOperation> {
 public:
  // Submits an operation. `submit` returns the Work; `needs_release`: peers access the caller's buffers, so
  // that the operation is done when it is *released*, not when it is *ready*.
  static std::shared_ptr<EngineOperation> Submit(std::shared_ptr<Session> session,
                                                 std::shared_ptr<void> memory, bool needs_release,
                                                 const std::function<Work(CommEngine&)>& submit);
  ~EngineOperation() override;

  bool IsDone() override;
  Outcome Wait(std::chrono::milliseconds timeout, const std::function<void()>& between) override;
  void WhenDone(std::chrono::milliseconds timeout, std::function<void(const Outcome&)> done) override;
  int Source() const override;
  // Runs the engine until done, for at most `slice`. While another thread waits for this operation, sleeps
  // instead.
  void Poll(absl::Duration slice);
  // The group of the possible senders of a receive. Called before other threads know the operation.
  void SetSenders(std::shared_ptr<const Session::GroupLanes> senders) { senders_ = std::move(senders); }

  // For Session::Close, with the engine's lock held, on registered operations.

  // Errors: kAborted (names the operation and what it waits for), if it is not *released*. OK after a
  // failure. Only reads the state.
  absl::Status CheckReleased() const;
  // Fixes the outcome: `otherwise`, if the operation is not done. Gives the Work to the engine. Waits for no
  // more than the data that this rank moves. The caller drops the operation's memory after the engine's lock:
  // see Note [Locks of a closing session].
  std::shared_ptr<void> Settle(const absl::Status& otherwise);

 private:
  EngineOperation(std::shared_ptr<Session> session, std::shared_ptr<void> memory, bool needs_release)
      : session_(std::move(session)), memory_(std::move(memory)), needs_release_(needs_release) {}
  bool HasEnded() const { return needs_release_ ? work_.TestReleased() : work_.Test(); }
  absl::Status WaitUntilEnded(absl::Duration timeout) {
    return needs_release_ ? work_.WaitReleased(timeout) : work_.Wait(timeout);
  }
  // Waits until the end of `slice`.
  absl::Status WaitSlice(const Deadline& slice);

  const std::shared_ptr<Session> session_;
  std::shared_ptr<void> memory_;
  const bool needs_release_;
  int64_t number_ = -1;  // See Session::CountUntilReady.
  std::shared_ptr<const Session::GroupLanes> senders_;
  std::mutex mutex_;  // Held while a thread waits: see Note [Locks of a closing session].
  // Not valid once settled, and if it was not submitted. The engine's lock keeps that of a registered
  // operation: under this lock, calls that a Work allows beside a wait need no mutex_.
  Work work_;
  std::optional<absl::Status> outcome_;  // Guarded by mutex_.
  std::atomic<int> source_ = -1;         // Session rank.
};

}  // namespace weft::python
