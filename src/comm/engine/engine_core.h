// The engine's state machine: lanes, what runs on them, and what moves next. Deterministic: links and time
// are passed in, it never blocks, and it moves no data itself but hands out tasks.
//
//   Submit*, then turns of: Poll, TakeTask, (run it), FinishTask
//
// Note [Lanes]
// Operations of a lane start in the order of submission, each when the one before is *ready* here, when the
// Work it comes `after` is ready and its *gate* is released, and when its slot in the descriptor ring is
// free. Order is fixed at submission: completing an operation never submits another. An operation whose data
// is here but which still owes something (*drained* comes later than *ready*), or whose peers still read,
// stays on the lane beside its successors until it is *released*.
//
// Thread safety: none; the caller's lock.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "src/comm/base/group_placement.h"
#include "src/comm/collectives/data_task.h"
#include "src/comm/collectives/operation.h"
#include "src/comm/engine/recorder.h"
#include "src/comm/links/credit_scheduler.h"
#include "src/comm/links/node_link.h"

namespace weft {

class EngineCore final : private TaskQueue {
 public:
  struct Environment {
    int rank;
    const NodeMap& nodes;
    NodeLink& node;
    WireLink& wire;
    BufferPool& scratch;
    Recorder& recorder;
    EngineCounters& counters;
    const EngineOptions& options;
  };
  explicit EngineCore(const Environment& environment);

  // Gives the next lane to a group.
  absl::StatusOr<int> AddLane(std::string name, ProcessGroup group, LanePurpose purpose);

  void Submit(std::shared_ptr<OperationRecord> record);
  // Somebody waits for this operation to be ready, or released: it, all before it on its lane, and what those
  // come `after`, go first.
  void Raise(int lane, uint64_t sequence, bool until_released);

  // One turn. True if anything advanced, so that another turn may help at once.
  bool Poll(int64_t now_ns);
  // The most urgent piece of data to move.
  std::optional<DataTask> TakeTask();
  void FinishTask(const DataTask& task, const absl::Status& moved);

  // Nothing is queued or running; peers may still have to release.
  bool idle() const { return unfinished_ == 0; }
  // Some operation still has data to move or to wait for here.
  bool working() const;
  bool has_tasks() const;
  // Something under way needs the wire: nobody rings when it comes.
  bool wire_busy() const { return wire_.busy() || wire_wanted_; }
  // The news of the failure may not have left yet: Poll sends it on.
  bool spreading() const { return spreading_; }
  // OK, or the failure that ended all work.
  const absl::Status& status() const { return status_; }
  // Fails everything that is under way, and tells the ranks of this node and of all lanes.
  void Fail(const absl::Status& cause);
  // Ranks whose data still comes in after the failure, to memory that is therefore not the caller's yet.
  std::set<int> PeersStillSending() { return wire_.PeersStillSending(); }
  // Once all ranks have stopped: nobody reads any more what was *ready* when the failure came, so that it
  // counts as *released*.
  void EndQuarantine();
  // Asks all other ranks for a sign of life, and says which have given none since.
  void RequestHeartbeat();
  std::set<int> Silent() const;
  // "waits for rank(s) 2, 3": for messages.
  std::string WaitingFor(const OperationRecord& record);

 private:
  struct Lane {
    Lane(std::string lane_name, GroupPlacement where)
        : name(std::move(lane_name)), placement(std::move(where)) {}
    std::string name;
    GroupPlacement placement;
    std::deque<std::shared_ptr<OperationRecord>> queued;
    std::deque<std::shared_ptr<OperationRecord>> running;  // Up to *released*, in order.
    uint64_t raised = 0;                                   // Sequences up to here are waited for,
    uint64_t raised_to_release = 0;                        // and up to here until they are released.
    uint64_t consumed = 0;                                 // As told to peers.
  };

  void Push(DataTask task) override;
  Priority PriorityOf(const Lane& lane, const OperationRecord& record) const;
  Priority PriorityOf(const Lane& lane) const;
  OperationContext ContextOf(Lane& lane, const std::shared_ptr<OperationRecord>& record, bool head);
  absl::StatusOr<bool> StepLane(int index, int64_t now_ns);
  bool MayStart(int index, const OperationRecord& next) const;
  absl::StatusOr<bool> StepRunning(int index, int64_t now_ns);
  void SetReady(OperationRecord& record, int64_t now_ns);
  bool ReleaseInOrder(int index, int64_t now_ns);
  uint64_t ConsumedByAll(int index) const;
  // Ranks of this node that have yet to consume a sequence of the lane.
  std::set<int> Consumers(int index, uint64_t sequence) const;
  std::string WhyQueued(const OperationRecord& record);
  void NoteLateOperations(int64_t now_ns);
  absl::Status PollPeers();
  std::vector<int> OtherRanks(bool of_this_node) const;

  const Environment env_;
  CreditScheduler wire_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::array<std::deque<DataTask>, 4> tasks_;                 // By priority.
  std::vector<std::shared_ptr<OperationRecord>> quarantine_;  // Failed, with whatever peers may still touch.
  int64_t unfinished_ = 0;                                    // Submitted, and neither released nor failed.
  bool wire_wanted_ = false;
  int64_t next_late_check_ns_ = 0;
  std::map<int, uint64_t> heartbeats_at_request_;  // Of the node's other ranks.
  absl::Status status_;
  bool spreading_ = false;
};

}  // namespace weft
