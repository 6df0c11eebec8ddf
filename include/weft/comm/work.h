// Handle of one asynchronous collective on this rank.
//
// A Work passes two events. *Ready*: its outputs are valid on this rank. *Released*: in addition, no peer
// reads or writes its buffers. Reuse or free a buffer only after *released*.
//
// Thread safety: one thread at a time, which may differ from the submitting thread. While one is in Wait or
//   WaitReleased, others may call Then and the const members.
// Lifetime: buffers must outlive *released*; after a failure, they must stay until ResetAfterError or the end
//   of the engine, as peers may still access them. A peer that was stopped may write outputs in node memory
//   even after the end of the engine; ResetAfterError excludes that. Wait for a Work, or detach it, before
//   you destroy it. Otherwise the destructor waits for *released*, and this rank submits nothing meanwhile.
//   It aborts the engine with an error that names the operation
//     - if the wait exceeds the engine's timeout, or the last Wait or WaitReleased exceeded that timeout;
//     - at once, if the operation is not *ready* and an exception unwinds the stack.
//   After a failure it does not wait for peers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/time/time.h>

namespace weft {

class CommEngine;
struct OperationRecord;

class [[nodiscard]] Work {
 public:
  Work() = default;
  Work(Work&& other) noexcept;
  Work& operator=(Work&& other) noexcept;
  ~Work();

  // False if default-constructed, moved from or detached. REQUIRES, for all members below: valid().
  bool valid() const { return record_ != nullptr; }

  // Blocks until *ready*, or until *released*; runs the progress loop meanwhile. `timeout` defaults to the
  // engine's; with a longer one, the watchdog waits for that long, too. May be called again.
  // Errors: kDeadlineExceeded (names lane, operation, sequence and missing ranks; the operation continues.
  //           Without a `timeout` it also names the ranks that are late, and those that do not respond);
  //         kFailedPrecondition (a peer submitted a different operation; the message has both);
  //         kInvalidArgument (an argument of the collective, which the message names);
  //         kAborted (the engine had failed before; the message has the cause);
  //         the error of a failed peer, with "rank N: " in front.
  absl::Status Wait(std::optional<absl::Duration> timeout = std::nullopt);
  absl::Status WaitReleased(std::optional<absl::Duration> timeout = std::nullopt);
  // The same without a `timeout`. They call `check` about every 50 ms, on this thread and without a lock of
  // the engine, until the timeout has passed. Null: no check. Errors also: those of `check`, which end the
  // wait; the operation continues. REQUIRES: `check` does not return kDeadlineExceeded, the engine's own.
  using WaitCheck = std::function<absl::Status()>;
  absl::Status Wait(const WaitCheck& check);
  absl::Status WaitReleased(const WaitCheck& check);

  // Gives the operation to the engine, which keeps `memory`, the owners of its buffers, until *released*;
  // after a failure, until ResetAfterError or the end of the engine. Any thread may destroy `memory`,
  // but no submission does: a destructor may take a lock that is held while submitting. Afterwards this is
  // not valid().
  void Detach(std::vector<std::shared_ptr<void>> memory);

  // Calls `done` exactly once: with OK when the operation is *ready*, or with its error. A missed deadline of
  // a Wait is no error of the operation. If the Work is *ready* or has failed already, Then calls `done`
  // before it returns. Otherwise the progress thread calls it, or a thread inside a Wait, ResetAfterError or
  // the engine's destructor; submissions and Abort never do. No lock of the engine is held. Callbacks that a
  // Work has when it becomes *ready* or fails are called in their order; a later one may be called before
  // them. A Wait for the Work may return before `done` is called. Moving, detaching or destroying the Work
  // does not affect it.
  //
  // REQUIRES: `done` does not throw, and returns soon, as operations wait for its thread meanwhile. It may
  //   submit operations, if all ranks of a lane then still submit in one order, and call Test, Then, Detach,
  //   Abort, status and the statistics. Operations that it submits during the engine's destructor fail with
  //   kAborted: peers have learned that this rank submits nothing more. It must not wait: it calls neither
  //   Wait, WaitReleased, nor ResetAfterError, nor destroys the engine or a Work that is not *released*.
  void Then(std::function<void(const absl::Status&)> done);

  // True once *ready* (or *released*), or failed: WaitReleased would return at once. Neither blocks nor makes
  // progress.
  bool Test() const;
  bool TestReleased() const;

  // The bootstrap rank that sent the message of a Receive that is *ready*. Else kAnySource.
  int source() const;

  // "all_gather 'layers.3' on lane shard/all_gather (all_gather of 1024 f32, sequence 12), ready".
  std::string Describe() const;
  // "waits for rank(s) 2, 3". Without meaning once TestReleased() is true.
  std::string DescribeWait() const;

 private:
  friend class CommEngine;
  Work(CommEngine* engine, std::shared_ptr<OperationRecord> record);
  absl::Status RecordTimeout(absl::Status waited, bool is_engine_timeout);
  CommEngine* engine_ = nullptr;
  std::shared_ptr<OperationRecord> record_;
  absl::Status timeout_;  // The error of the last wait if it exceeded the engine's timeout.
};

}  // namespace weft
