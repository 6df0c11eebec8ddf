// State machine of the engine: the lanes, the operations that run on them, and the data tasks that are ready.
//
//   Submit*, then repeatedly: Poll, PopTask, (run the task), FinishTask
//
// Deterministic: links and time are parameters. No call blocks. The caller runs the tasks, which move the
// data; only the smallest collectives of a node are moved in a poll (RunAtOnce).
//
// Note [Lanes]
// Operations of a lane start in the order of submission. An operation starts once
//   - its predecessor on the lane is *ready* on this rank,
//   - the Work that it comes `after` is *ready*, and its gate is *released*,
//   - its slot in the descriptor ring is free.
// Program order is thus fixed at submission: completing an operation never submits another, so that ranks
// cannot disagree about the order. An operation may be *ready* and yet owe slices to peers (it is not
// *drained*), or peers may still read its buffers. It then stays on the lane beside its successors until it
// is *released*.
//
// Note [Leaving]
// Problem: a rank that returns early, mostly because of an error of its own, destroys its engine. Its peers
// would wait for its next operation until their deadline.
// Rule: a rank that destroys its engine first *leaves* its lanes. On each lane it publishes, at the sequence
// after its last operation, a descriptor that says so: to all peers of its node, and to one rank of each
// neighbor node (Note [Node graphs]). An operation of a peer at that sequence differs from it, and fails on
// all ranks as a mismatch.
// Why it suffices: all ranks of a lane submit the same operations, and a failure reaches every rank. Earlier
// operations are not affected: leaving is legal at any time, also while peers still finish them. Later ones
// of this rank, which only a callback can submit, are refused: they would take the descriptor's sequence.
// Full rings: a descriptor needs a slot, and operations may be *released* before all peers have consumed
// them. So polls go on to leave lanes, and the destructor waits for it, though only for seconds: a peer that
// has stopped consumes nothing.
// Closed links: a rank that is no neighbor may wait for the one that has left before any neighbor submits the
// operation and fails. It may find that it cannot reach that rank, which has closed its link, and cannot tell
// this from a death. It then asks the witnesses of that rank (Note [Messages]) for two seconds. If one has
// learned of the leaving, the operation fails as that of a neighbor would. Otherwise the rank counts as lost.
//
// Thread safety: none. EngineShell guards the core with its mutex.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include "src/comm/base/group_placement.h"
#include "src/comm/base/trace_log.h"
#include "src/comm/engine/late_ranks.h"
#include "src/comm/engine/recorder.h"
#include "src/comm/links/control_mail.h"
#include "src/comm/links/credit_scheduler.h"
#include "src/comm/links/node_link.h"
#include "src/comm/messages/message_board.h"
#include "src/comm/phases/data_task.h"
#include "src/comm/phases/domain_sums.h"
#include "src/comm/phases/operation.h"
#include "weft/comm/types.h"

namespace weft {

class EngineCore final : private TaskQueue, private MessageEvents {
 public:
  struct Environment {
    int rank;
    const NodeMap& nodes;
    NodeLink& node;
    WireLink& link;
    TagLayout tags;  // Those of `link`.
    BufferPool& scratch;
    Recorder& recorder;
    TraceLog& trace;
    EngineCounters& counters;
    const EngineOptions& options;
    CreditRules credit_rules;
    bool shares_core;              // Ranks of the node share hardware threads.
    bool moves_take_virtual_time;  // In a simulation: a move must not run inside of a poll.
  };
  explicit EngineCore(const Environment& environment);

  // Adds the lane `index` in [0, NodeLink::kMaxLanes). REQUIRES: it is free. Some indices may stay free.
  // Errors: kResourceExhausted (no node memory, or no message tags for the lane).
  absl::Status AddLane(int index, std::string name, GroupPlacement placement, LanePurpose purpose);

  // Allocates what the next lane of a group needs of node memory.
  absl::Status ReserveLane(const GroupPlacement& placement) {
    return env_.node.ReserveLane(CountersOf(placement));
  }

  // Fails the operation if the core has failed or leaves.
  void Submit(std::shared_ptr<OperationRecord> record);
  // Registers that a thread waits until the operation is *ready*, or *released*. Raises it to kCritical,
  // together with its predecessors on the lane and the operations for which these wait (`after` and gate).
  void RaisePriority(OperationRecord& record, bool until_released);

  // Leaves all lanes: this rank submits nothing more. Polls go on with lanes whose descriptor ring is full.
  // Call it again once all operations are *released*, for messages. See Note [Leaving].
  absl::Status Leave();
  // After Leave: true if the peers of every lane have been told, or have a failure notice.
  bool has_left_lanes() const { return !status_.ok() || lanes_to_leave_.empty(); }
  // The same as a status. Errors: kDeadlineExceeded (names a lane whose peers have not been told, and the
  //   ranks that keep its descriptor ring full).
  absl::Status CheckHasLeft() const;

  // Steps every lane once. True if anything advanced: another call may then advance more at once.
  bool Poll(int64_t now_ns);
  // Removes and returns the most urgent task. Nothing if there is none.
  std::optional<DataTask> PopTask();
  // The same if the most urgent task is immediate. Nothing otherwise.
  std::optional<DataTask> PopImmediateTask();
  void FinishTask(const DataTask& task, const absl::Status& moved);

  // True if no operation is queued or running, or awaits its release.
  bool is_idle() const { return unfinished_ == 0; }
  // An unfinished operation; one whose last wait exceeded the engine's timeout. Null: there is none.
  const OperationRecord* FindUnfinished() const;
  const OperationRecord* FindMissedDeadline() const;
  // True if an operation has yet to start, or is not drained. False if only releases by peers are missing.
  bool has_local_work() const;
  bool has_tasks() const;
  // True if an unfinished operation waits for something that rings no doorbell and must be polled: messages
  // of other nodes, or a slot of the descriptor ring whose operation was released before all had consumed it.
  // Likewise if a lane that this rank leaves waits for a slot.
  bool must_be_polled() const { return wire_.busy() || uses_wire_ || awaits_slot_; }
  // True, once, if an operation has completed or could advance in another poll. Threads of this rank that
  // sleep must hear of it.
  bool TakeWakeUp() { return std::exchange(must_wake_threads_, false); }
  // Interval between polls of the wire. See Note [Poll intervals].
  int64_t poll_interval_ns() const { return wire_.PollIntervalNs(now_ns_); }
  bool has_fast_link() const { return wire_.has_fast_link(); }
  // Sends the remaining control messages and signals. False once all have been sent, or the transport has
  // failed.
  bool FlushControlMessages() {
    const bool any_on_node = env_.node.FlushMail();
    return mail_.Flush() || any_on_node;
  }
  // True if control messages, signals or a failure notice may not have been sent yet. Poll continues to send
  // them: a peer may wait for them although no operation is left on this rank.
  bool has_unsent_control_messages() const {
    if (!status_.ok()) return broadcasting_failure_;
    return env_.node.HasUnsentMail() || (job_spans_nodes_ && env_.link.HasUnsentControlMessages());
  }
  EngineCounters counters() const { return env_.counters; }
  // Moves `memory` into the record, unless the operation is already *released*. See Work::Detach.
  void KeepAlive(OperationRecord& record, std::vector<std::shared_ptr<void>>&& memory);

  // Moves the memory of *released* operations to the end of `memory`. The caller destroys it without the
  // lock: destructors may call the engine.
  void MoveReleasedMemoryTo(std::vector<std::shared_ptr<void>>& memory) {
    std::move(released_memory_.begin(), released_memory_.end(), std::back_inserter(memory));
    released_memory_.clear();
  }
  bool has_released_memory() const { return !released_memory_.empty(); }
  // The same for all memory that the core keeps, also that of failed operations.
  void MoveAllMemoryTo(std::vector<std::shared_ptr<void>>& memory);
  // Registers a callback of an operation. Returns false if the operation is *ready* or has failed: the caller
  // then calls `done` itself. See Work::Then.
  bool AddCallback(OperationRecord& record, CompletionCallback& done);
  bool has_callbacks() const { return !callbacks_.empty(); }
  // Callbacks of operations that have become *ready* or have failed. The caller calls them without the lock.
  std::vector<CompletedCallback> TakeCallbacks() { return std::exchange(callbacks_, {}); }

  // OK, or the first failure.
  const absl::Status& status() const { return status_; }
  // Fails all unfinished operations and notifies all ranks. Failed operations stay in quarantine, because
  // peers may still access their memory. REQUIRES: `cause` is an error.
  void Fail(const absl::Status& cause);
  // After a failure: peers that still exchange data with buffers of failed operations.
  CreditScheduler::PeersInFlight AbandonedTransfers() { return wire_.AbandonedTransfers(); }
  // Failed operations that were *ready* at the failure become *released*. The core keeps them all, and their
  // memory, until its end.
  // REQUIRES: no rank accesses memory of failed operations any more.
  void ReleaseQuarantine();

  // An inquiry after the ranks for which an operation waits. See Note [Late ranks].
  struct Inquiry {
    int64_t begun_ns = 0;
    OperationNumber waits_in;
    std::map<int, uint64_t> heartbeats;  // Of the ranks of this node, when the inquiry began.
  };
  Inquiry Inquire(const OperationRecord& record);
  // True if every rank of this node has had a heartbeat since the check began, or a second for it, and every
  // rank that was asked has answered.
  bool IsAnswered(const Inquiry& inquiry) const;
  // "no heartbeat from rank(s) 3; "; empty if no rank is known to be late or silent.
  std::string DescribeInquiry(const Inquiry& inquiry) const;
  // For messages: "waits for rank(s) 2, 3".
  std::string DescribeWait(const OperationRecord& record);
  // The error of a wait whose deadline has passed. `others`: what is known of other ranks, or empty.
  absl::Status DeadlineError(const OperationRecord& record, std::string_view others);

 private:
  // Progress counters of a lane: this rank's progress on each member's part, in a reduction and in a gather.
  // Sums of share domains need others.
  static int CountersOf(const GroupPlacement& placement) {
    const int counters = 2 * placement.size();
    return DomainSums::Applies(placement) ? std::max(counters, DomainSums::CountersOf(placement)) : counters;
  }

  struct Lane {
    Lane(std::string lane_name, GroupPlacement where)
        : name(std::move(lane_name)), placement(std::move(where)) {}
    std::string name;
    GroupPlacement placement;
    std::deque<std::shared_ptr<OperationRecord>> queued;
    std::deque<std::shared_ptr<OperationRecord>> running;  // Started and not *released*, in order.
    uint64_t awaited_until_ready = 0;    // A thread waits until sequences up to this one are *ready*.
    uint64_t awaited_until_release = 0;  // A thread waits until sequences up to this one are *released*.
    uint64_t consumed = 0;               // Last sequence that this rank has told its peers it consumed.
    uint64_t consumed_by_all = 0;        // The last such sequence that this rank has read.
    uint64_t submitted = 0;              // Last sequence that was submitted.
    uint64_t recorded = 0;               // Last sequence in the flight recorder.
    uint64_t recorded_ready = 0;         // Last sequence that RecordReady has recorded.
    bool active = false;                 // Is in active_.
  };

  void Push(DataTask task) override;
  bool RunAtOnce(const WholeMoveTask& task) override;
  void OnMessageStarted(OperationRecord& record) override;
  void OnMessageFinished(OperationRecord& record) override;
  void SetRunning(OperationRecord& record);
  void SetReleased(OperationRecord& record);
  void FailRecord(const std::shared_ptr<OperationRecord>& record, const absl::Status& cause);
  absl::StatusOr<bool> PollLanes();
  Priority PriorityOf(const Lane& lane, const OperationRecord& record) const;
  Priority PriorityOf(const Lane& lane) const;
  OperationContext ContextOf(Lane& lane, const std::shared_ptr<OperationRecord>& record);
  absl::StatusOr<bool> StepLane(int index);
  bool MayStart(int index, const OperationRecord& next);
  absl::StatusOr<bool> StepRunning(int index);
  void SetReady(OperationRecord& record);
  // Adds the operation to the flight recorder. Returns false if it is there.
  bool RecordNew(Lane& lane, const OperationRecord& record);
  // Adds all operations that have not started.
  void RecordQueued(Lane& lane);
  // Writes operations that are *ready* and not *released* into the flight recorder, once.
  void RecordReady(Lane& lane);
  // True if the slot of `sequence` in the descriptor ring is free. See Note [Descriptor ring].
  bool HasSlot(int index, uint64_t sequence);
  void Consume(int index, const OperationRecord& record);
  bool ReleaseInOrder(int index);
  // True if all ranks have consumed `sequence`. Reads the flag of the node only if that is not known yet: the
  // rank that consumes last writes it for each operation, so that reading it takes a cache line from there.
  bool IsConsumedByAll(int index, uint64_t sequence);
  // Leaves those of lanes_to_leave_ that have a slot.
  absl::Status LeaveLanes();
  // REQUIRES: the lane has a slot for one more descriptor.
  absl::Status LeaveLane(int index);
  // Ranks of this node that have not consumed `sequence` of the lane.
  std::set<int> RanksYetToConsume(int index, uint64_t sequence) const;
  // Why an operation has not started.
  struct StartWait {
    absl::string_view reason;
    const OperationRecord* blocker;  // The operation that must get further first. Null: there is none.
  };
  StartWait StartWaitOf(const OperationRecord& record) const;
  std::string DescribeStartWait(const OperationRecord& record);
  // Bootstrap ranks for which a running operation waits.
  std::set<int> AwaitedRanks(const OperationRecord& record);
  // The ranks for which an operation waits, itself or through others of this rank.
  LateRanks::Awaited AwaitedBy(const OperationRecord& record);
  LateRanks::Awaited AwaitedBy(const OperationNumber& number);
  // An unfinished operation for which a thread waits; null if there is none.
  const OperationRecord* OfWaitingThread() const;
  // The first unfinished operation that is wanted; null if there is none.
  const OperationRecord* FindFirst(absl::FunctionRef<bool(const OperationRecord&)> is_wanted) const;
  void AnswerQuestions();
  void Send(const LateRanks::Messages& messages);
  std::set<int> SilentOnNode(const Inquiry& inquiry) const;
  // Writes into the flight recorder what the first unfinished operation of each slow lane waits for.
  void RecordSlowOperations();
  void RecordWaitOfFirst(const Lane& lane);
  // Sets peer_failure_, and returns it as an error.
  absl::Status CheckPeerFailures();
  // The first unfinished operation or message that waits for each rank. A receive from any rank that no
  // sender has announced waits for none in particular.
  std::map<int, const OperationRecord*> FirstAwaiting();
  // Errors: the cause (an unfinished operation or message waits for a rank whose connection was lost), or
  // those of CheckClosedPeer.
  absl::Status CheckLostPeers();
  // Errors: kAborted (the peer has left), the cause (it has not, as far as its witnesses know). See Note
  // [Leaving].
  absl::Status CheckClosedPeer(const WireLink::LostPeer& lost, const OperationRecord& waiting);
  // Ranks of other nodes to which this rank sends failure notices. See Note [Node graphs].
  std::vector<int> FailureRecipients() const;

  // Moves the callbacks of a completed operation to callbacks_.
  void QueueCallbacks(OperationRecord& record, const absl::Status& status);

  const Environment env_;
  ControlMail mail_;
  CreditScheduler wire_;
  MessageBoard messages_;
  const bool job_spans_nodes_;
  int64_t now_ns_ = 0;                                        // Time of this or the last poll.
  std::vector<std::unique_ptr<Lane>> lanes_;                  // By index. Null: no lane of this rank.
  std::vector<int> active_;                                   // Lanes that may have operations.
  std::vector<int> lanes_to_leave_;                           // See Note [Leaving].
  std::vector<std::pair<Priority, int>> order_;               // Of a poll: active lanes by priority.
  std::array<std::deque<DataTask>, kPriorities> tasks_;       // By priority.
  std::vector<std::shared_ptr<OperationRecord>> quarantine_;  // Failed operations. See Fail.
  std::vector<std::shared_ptr<void>> released_memory_;        // See MoveReleasedMemoryTo.
  std::vector<CompletedCallback> callbacks_;                  // See TakeCallbacks.
  int64_t unfinished_ = 0;                                    // Submitted, neither *released* nor failed.
  bool uses_wire_ = false;                                    // A lane with operations spans nodes.
  bool awaits_slot_ = false;                                  // See must_be_polled.
  bool must_wake_threads_ = false;                            // See TakeWakeUp.
  bool leaving_ = false;
  int64_t next_slow_check_ns_ = 0;
  LateRanks late_ranks_;
  // Questions after a rank that may have closed its link.
  struct Questions {
    int64_t begun_ns;
    int64_t next_ns;
  };
  std::map<int, Questions> questions_;  // By rank.
  absl::Status status_;
  std::optional<NodeLink::FailureNotice> peer_failure_;  // The failure notice of another rank.
  bool broadcasting_failure_ = false;
};

}  // namespace weft
