// What engine and Work share about one operation: what it is, and how far it has come.
//
// The submitting thread fills the first part before it hands the record over; the engine writes the rest
// under its lock. `state` is what other threads read: everything written before a state is visible to whoever
// reads that state.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "src/comm/base/descriptor.h"
#include "src/comm/base/part_shape.h"
#include "weft/comm/types.h"

namespace weft {

class Operation;

enum class OperationState : uint8_t { kQueued, kRunning, kReady, kReleased, kFailed };

struct OperationRecord {
  int lane = -1;
  std::string lane_name;
  Descriptor descriptor;
  Priority priority = Priority::kBulk;
  std::string label;
  int64_t logical_bytes = 0;               // What the algorithm must bring to this rank.
  std::shared_ptr<OperationRecord> after;  // Starts when that is ready,
  std::shared_ptr<OperationRecord> gate;   // and that is released.
  std::unique_ptr<Operation> operation;
  std::vector<std::shared_ptr<void>> kept;  // Its buffers, if nobody else answers for them. The core's lock.
  OperationRecord* next = nullptr;          // In the submission stack.
  std::shared_ptr<OperationRecord> self;    // Keeps the record while only the stack knows it.

  std::atomic<OperationState> state{OperationState::kQueued};
  absl::Status error;  // Valid once kFailed.
  int64_t submitted_ns = 0;
  int64_t started_ns = 0;
  int64_t ready_ns = 0;
  int64_t released_ns = 0;

  OperationState State() const { return state.load(std::memory_order_acquire); }
  bool IsReady() const { return State() == OperationState::kReady || State() == OperationState::kReleased; }
};

// "all_gather 'layers.3' on lane shard/all_gather (all_gather of 1024 f32, sequence 12), running".
std::string Describe(const OperationRecord& record);
std::string_view Name(OperationState state);

// `sender` has a part for `receiver`, which expects another shape.
absl::Status PartMismatch(const OperationRecord& record, int sender, const PartShape& part, int receiver,
                          const PartShape& expected);

}  // namespace weft
