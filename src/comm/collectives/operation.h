// A collective as a state object: the core calls Step until it says that it is done. No call blocks.
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

// Where streams put pieces for whoever has time to run them.
class TaskQueue {
 public:
  virtual void Push(DataTask task) = 0;

 protected:
  ~TaskQueue() = default;
};

// What an operation may use while it steps.
struct OperationContext {
  const GroupPlacement& placement;
  NodeLink& node;
  CreditScheduler& wire;
  TaskQueue& tasks;
  BufferPool& scratch;
  EngineCounters& counters;
  const EngineOptions& options;
  const std::shared_ptr<OperationRecord>& record;
  Priority priority;         // As raised by waiters.
  bool head;                 // The first unfinished operation of its lane.
  bool ready_is_awaited;     // A thread of this rank waits for it, or for a later one of its lane, to be
  bool released_is_awaited;  // *ready*; or *released*.
};

// How numbers of this dtype cross nodes for the operation.
inline WireEncoding WireEncodingOf(const OperationContext& context, DType dtype) {
  const Descriptor& descriptor = context.record->descriptor;
  if (descriptor.compression == WireCompression::kNone || !IsCompressible(dtype)) return WireEncoding::kPlain;
  return descriptor.kind == OpKind::kAllGatherDelta ? WireEncoding::kDelta : WireEncoding::kCompressed;
}

class Operation {
 public:
  enum class Progress : uint8_t { kAgain, kAdvanced };

  virtual ~Operation() = default;

  // Moves on as far as possible without waiting.
  virtual absl::StatusOr<Progress> Step(OperationContext& context) = 0;
  // The outputs are valid here.
  virtual bool ready() const = 0;
  // In addition nothing is owed to peers, and nothing of theirs is read any more.
  virtual bool drained() const = 0;
  // Bootstrap ranks without which it cannot go on now.
  virtual std::set<int> WaitsFor(const OperationContext& context) const = 0;
};

}  // namespace weft
