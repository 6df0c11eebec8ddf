// Interface of a collective as a state machine. The core calls Step until the operation is drained. No call
// blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/comm/base/group_placement.h"
#include "src/comm/codec/wire_encoding.h"
#include "src/comm/collectives/data_task.h"
#include "src/comm/links/credit_scheduler.h"
#include "src/comm/links/node_link.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

// Queue of the tasks that streams issue. Any thread that runs the progress loop executes them.
class TaskQueue {
 public:
  virtual void Push(DataTask task) = 0;

 protected:
  ~TaskQueue() = default;
};

// Resources of an operation during Step.
struct OperationContext {
  const GroupPlacement& placement;
  NodeLink& node;
  CreditScheduler& wire;
  TaskQueue& tasks;
  BufferPool& scratch;
  EngineCounters& counters;
  const EngineOptions& options;
  const std::shared_ptr<OperationRecord>& record;
  Priority priority;      // Priority of the operation, raised if a thread waits for it.
  bool head;              // True for the first unfinished operation of the lane.
  bool ready_is_awaited;  // A thread of this rank waits until this operation, or a later one of the lane, is
                          // *ready*.
  bool released_is_awaited;  // A thread of this rank waits until it, or a later one of the lane, is
                             // *released*.
};

// Encoding of this dtype between nodes in the operation of the context.
inline WireEncoding WireEncodingOf(const OperationContext& context, DType dtype) {
  const Descriptor& descriptor = context.record->descriptor;
  if (descriptor.compression == WireCompression::kNone || !IsCompressible(dtype)) return WireEncoding::kPlain;
  return descriptor.kind == OpKind::kAllGatherDelta ? WireEncoding::kDelta : WireEncoding::kCompressed;
}

class Operation {
 public:
  enum class Progress : uint8_t { kAgain, kAdvanced };

  virtual ~Operation() = default;

  // Advances as far as possible without waiting. kAdvanced: another Step may advance further at once.
  virtual absl::StatusOr<Progress> Step(OperationContext& context) = 0;
  // True once the outputs are valid on this rank.
  virtual bool ready() const = 0;
  // True once the operation is ready, has sent all data that peers expect of it, and no longer reads their
  // memory.
  virtual bool drained() const = 0;
  // Bootstrap ranks that the operation currently waits for.
  virtual std::set<int> WaitsFor(const OperationContext& context) const = 0;
};

}  // namespace weft
