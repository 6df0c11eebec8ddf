// State of one operation, shared by the engine and the caller's Work.
//
// Thread safety: the submitting thread fills the first block before it submits the record. From then on the
//   engine writes the record under its lock. Other threads read `state` (acquire): everything that was
//   written before a state was stored (release) is visible to the thread that reads that state.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

#include "src/comm/base/descriptor.h"
#include "src/comm/base/part_shape.h"
#include "weft/comm/types.h"

namespace weft {

class Operation;

enum class OperationState : uint8_t { kQueued, kRunning, kReady, kReleased, kFailed };

// A callback of Work::Then, and one with the outcome to call it with.
using CompletionCallback = std::function<void(const absl::Status&)>;
struct CompletedCallback {
  CompletionCallback done;
  absl::Status status;
};

// A point-to-point message, as its sender or its receiver submits it.
struct MessageRequest {
  int peer = kAnySource;  // Bootstrap rank.
  int tag = 0;
  uint64_t channel = 0;
  std::byte* data = nullptr;  // A send only reads it.
  int64_t bytes = 0;
  // The sender of a receive, once it is known. Written before the state is kRunning.
  int source = kAnySource;
  bool awaited = false;  // A thread waits for it.
};

struct OperationRecord {
  int lane = -1;
  std::string_view lane_name;  // Lives as long as the engine.
  Descriptor descriptor;
  Priority priority = Priority::kBulk;
  std::string label;
  int64_t logical_bytes = 0;  // Bytes that the algorithm must bring to this rank.
  // The operation starts once `after` is *ready* and `gate` is *released*. Null: it waits for none.
  std::shared_ptr<OperationRecord> after;
  std::shared_ptr<OperationRecord> gate;
  std::unique_ptr<Operation> operation;   // Null for a message.
  std::optional<MessageRequest> message;  // Set for a message.
  // Buffers handed over by Work::Detach. Guarded by the core's lock.
  std::vector<std::shared_ptr<void>> kept;
  // Callbacks of Work::Then that wait for *ready*. Guarded by the core's lock.
  std::vector<CompletionCallback> callbacks;
  OperationRecord* next = nullptr;        // The next record of the submission stack.
  std::shared_ptr<OperationRecord> self;  // Keeps the record alive while it is only on the submission stack.

  std::atomic<OperationState> state{OperationState::kQueued};
  // Set by a failure of the engine. An operation that was *ready* stays kReady until the engine is reset.
  std::atomic<bool> has_failed{false};
  absl::Status error;  // Valid once kFailed or has_failed.
  // The last wait for it exceeded the engine's timeout.
  std::atomic<bool> missed_deadline{false};
  int64_t submitted_ns = 0;
  int64_t started_ns = 0;
  int64_t ready_ns = 0;
  int64_t released_ns = 0;

  OperationState State() const { return state.load(std::memory_order_acquire); }
  bool IsReady() const { return State() == OperationState::kReady || State() == OperationState::kReleased; }
  // True once *released*, or failed.
  bool HasEnded() const {
    return State() == OperationState::kReleased || State() == OperationState::kFailed ||
           has_failed.load(std::memory_order_acquire);
  }
};

// "all_gather 'layers.3' on lane shard/all_gather (all_gather of 1024 f32, sequence 12), running".
// "send 'logits' of 4096 bytes to rank 3 (channel 0, tag 7), running".
std::string Describe(const OperationRecord& record);
// "of 4096 bytes to rank 3 (channel 0, tag 7)". REQUIRES: a message.
std::string DescribeMessage(const OperationRecord& record);
std::string_view Name(OperationState state);

// The error of an operation that needs a rank which has destroyed its engine. `missed`: what that rank did
// not do, such as "submitted".
absl::Status HasLeft(int rank, std::string_view missed, const OperationRecord& record);
// The error of a part that `sender` sends in another shape than `receiver` expects. Both are bootstrap ranks.
absl::Status PartMismatch(const OperationRecord& record, int sender, const PartShape& part, int receiver,
                          const PartShape& expected);

}  // namespace weft
