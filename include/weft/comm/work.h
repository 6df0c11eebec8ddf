// One rank's part of an asynchronous collective. It has two events: *ready*, when its outputs are valid here,
// and *released*, when in addition no peer reads its inputs or outputs through this operation any more.
//
// Thread safety: a Work belongs to the thread that submitted it.
// Lifetime: the buffers named at submission must stay until *released*. Destroying an unfinished Work waits
//   for that (to the engine's deadline). Destroying a failed one never waits for peers: the engine keeps its
//   record in quarantine. Memory of a failed operation must stay until ResetAfterError or the engine's end:
//   peers of the node may read it, or write to it, and what is on its way between nodes may still be read
//   from it, or written to it.
#pragma once

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

  // False for a default-constructed or moved-from Work, on which only destruction and assignment make sense.
  bool valid() const { return record_ != nullptr; }

  // Blocks until *ready*, and helps to move data meanwhile. The deadline defaults to the engine's; it is
  // never infinite. Waiting again is harmless.
  //
  // Errors: kDeadlineExceeded (names the lane, the operation, its sequence and the ranks it waits for, and
  // past the engine's own deadline also those that give no sign of life; the operation goes on);
  // kFailedPrecondition (a peer submitted something else: both operations are in the message); a peer's
  // error, with "rank N: " in front; kAborted (the engine had failed before: with the cause).
  absl::Status Wait(std::optional<absl::Time> deadline = std::nullopt);
  absl::Status WaitReleased(std::optional<absl::Time> deadline = std::nullopt);

  // Lets the operation go on by itself: the engine keeps `memory`, which holds its buffers, until it is
  // *released* or, if it fails, until ResetAfterError or the engine's end. Whoever lets go of `memory` last
  // may be any thread. Afterwards this is no longer valid().
  void Detach(std::vector<std::shared_ptr<void>> memory);

  // Whether the operation is *ready* or has failed; never blocks, and makes no progress by itself.
  bool Test() const;
  bool TestReleased() const;

  // "all_gather 'layers.3' on lane shard/all_gather (all_gather of 1024 f32, sequence 12), ready".
  std::string Describe() const;

 private:
  friend class CommEngine;
  Work(CommEngine* engine, std::shared_ptr<OperationRecord> record);
  CommEngine* engine_ = nullptr;
  std::shared_ptr<OperationRecord> record_;
};

}  // namespace weft
