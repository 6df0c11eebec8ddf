// State object of one collective on this rank, which the engine's core steps until it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "src/comm/base/group_placement.h"
#include "src/comm/codec/wire_encoding.h"
#include "src/comm/links/credit_scheduler.h"
#include "src/comm/links/node_link.h"
#include "src/comm/phases/data_task.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

// Queue of data tasks. The engine's threads run them. OnTaskDone must not push.
class TaskQueue {
 public:
  virtual void Push(DataTask task) = 0;
  // Runs an immediate move, before it returns, if that takes less time than to queue it. Does not call
  // OnTaskDone. Returns false if it has not run the move.
  virtual bool RunAtOnce(const WholeMoveTask& task) = 0;

 protected:
  ~TaskQueue() = default;
};

// Everything that an operation may use in a step.
struct OperationContext {
  const GroupPlacement& placement;
  NodeLink& node;
  CreditScheduler& wire;
  TaskQueue& tasks;
  BufferPool& scratch;
  EngineCounters& counters;
  const EngineOptions& options;
  const std::shared_ptr<OperationRecord>& record;
  Priority priority;         // The operation's, or kCritical if a thread waits for it.
  bool is_ready_awaited;     // A thread waits until this or a later operation of the lane is *ready*.
  bool is_release_awaited;   // A thread waits until this or a later operation of the lane is *released*.
  bool shares_core = false;  // Ranks of the node share hardware threads.

  // The operation's counters in node memory. Each rank has its own, and others read them.
  int64_t CounterOfRank(int bootstrap_rank, int index) const {
    return node.Counter(record->lane, bootstrap_rank, record->descriptor.sequence, index);
  }
  int64_t CounterOf(int member, int index) const {
    return CounterOfRank(placement.BootstrapRank(member), index);
  }
  void SetCounter(int index, int64_t value) const {
    node.SetCounter(record->lane, record->descriptor.sequence, index, value);
  }
  // Wakes local members that may wait for this rank.
  void Ring(absl::Span<const int> members) const {
    for (const int member : members) node.Ring(placement.BootstrapRank(member));
  }
  void RingLocalPeers() const { Ring(placement.local_peers()); }
  // Sets a counter of this rank, and wakes `members`.
  void Announce(int index, int64_t value, absl::Span<const int> members) const {
    SetCounter(index, value);
    Ring(members);
  }
  // Does nothing if there are none.
  void AnnounceToLocalPeers(int index, int64_t value) const {
    if (!placement.local_peers().empty()) Announce(index, value, placement.local_peers());
  }
};

// Encoding of elements of `dtype` between nodes in this operation.
inline WireEncoding WireEncodingOf(const OperationContext& context, DType dtype) {
  const Descriptor& descriptor = context.record->descriptor;
  if (descriptor.wire_compression == WireCompression::kNone || !IsCompressible(dtype)) {
    return WireEncoding::kPlain;
  }
  return descriptor.kind == OpKind::kAllGatherDelta ? WireEncoding::kDelta : WireEncoding::kCompressed;
}

class Operation {
 public:
  enum class Progress : uint8_t { kNoProgress, kAdvanced };

  virtual ~Operation() = default;

  // Advances as far as possible without blocking. Returns kAdvanced whenever another step may advance
  // further.
  virtual absl::StatusOr<Progress> Step(OperationContext& context) = 0;
  // True once the outputs are valid on this rank.
  virtual bool ready() const = 0;
  // True once, in addition, this rank owes nothing to peers and no longer accesses their memory.
  virtual bool drained() const = 0;
  // True if no peer accesses this rank's buffers once the operation is drained on this rank. It is then
  // *released*, though peers may not have consumed it.
  virtual bool is_released_when_drained() const { return false; }
  // Bootstrap ranks without which the operation cannot complete. It fails if the connection to one is lost,
  // so ranks whose data has all arrived are not among them.
  virtual std::set<int> AwaitedRanks(const OperationContext& context) const = 0;
};

}  // namespace weft
