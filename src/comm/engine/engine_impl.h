// Implementation of CommEngine: links, recorder, shell and core, and the lanes of the submitting thread.
//
// Thread safety: that of CommEngine.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "src/comm/collectives/operations.h"
#include "src/comm/engine/engine_shell.h"
#include "src/comm/engine/lane_agreement.h"
#include "src/comm/engine/reset_rounds.h"
#include "src/comm/engine/watchdog.h"
#include "src/comm/phases/collective_plan.h"
#include "weft/comm/comm_engine.h"
#include "weft/comm/types.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

// Lets one thread or fiber at a time into a section. Unlike a mutex, it may be held while a fiber waits.
class Turn {
 public:
  explicit Turn(Runtime& runtime) : runtime_(runtime) {}
  class [[nodiscard]] Hold {
   public:
    explicit Hold(Turn& turn) : turn_(turn) {
      while (turn_.taken_.exchange(1, std::memory_order_acquire) != 0)
        turn_.runtime_.SleepOn(turn_.taken_, 1, kMaxSleepNs);
    }
    ~Hold() {
      turn_.taken_.store(0, std::memory_order_release);
      turn_.runtime_.WakeAll(turn_.taken_);
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Turn& turn_;
  };

 private:
  static constexpr int64_t kMaxSleepNs = 20'000'000;
  Runtime& runtime_;
  std::atomic<uint32_t> taken_{0};
};

class CommEngine::Impl {
 public:
  // `credit_rules` differs from the default in tests alone: see
  // tests/comm/random_programs/engine_with_rules.h.
  Impl(Bootstrap& bootstrap, NodeHeap& heap, EngineOptions options, CreditRules credit_rules = {});
  ~Impl();

  absl::Status Open();
  absl::StatusOr<LaneId> AddLane(const ProcessGroup& group, LanePurpose purpose);
  absl::StatusOr<LaneId> SharedLane(const ProcessGroup& group, LanePurpose purpose, int number);
  absl::StatusOr<LaneId> GroupLane(const ProcessGroup& group, LanePurpose purpose, int number,
                                   const GroupExchange& exchange);
  absl::Status ResetAfterError();

  struct Lane {
    std::string name;
    LanePurpose purpose;
    GroupPlacement placement;
    uint64_t group_hash;
    int index = -1;              // Set by Install.
    uint64_t next_sequence = 1;  // Guarded by lanes_mutex_.
  };
  // The arguments of a collective.
  struct Request {
    Lane* lane = nullptr;  // Null: the engine has none of that id.
    CollectivePlan plan;
    AllReduceForm form = AllReduceForm::kDirect;  // Valid for an all-reduce.
    // These two must be equal on all ranks of the group.
    int64_t total_count = 0;
    uint64_t counts_hash = 0;
    int64_t logical_bytes = 0;  // Bytes that the algorithm must bring to this rank.
    bool any_dtype = false;     // See Descriptor.
    OpOptions options;
    std::shared_ptr<OperationRecord> after;
    std::shared_ptr<OperationRecord> gate;
  };
  // Returns the record of the operation. If `valid` is an error, the record has failed with it, and the
  // engine is aborted. REQUIRES: the request has a lane unless `valid` is an error.
  std::shared_ptr<OperationRecord> Submit(Request&& request, const absl::Status& valid);
  // The same for a point-to-point message.
  std::shared_ptr<OperationRecord> SubmitMessage(OpKind kind, const MessageAddress& address, std::byte* data,
                                                 DType dtype, int64_t count, OpOptions options);
  // `check`: see Work::Wait.
  absl::Status Wait(const std::shared_ptr<OperationRecord>& record, EngineShell::Event event,
                    std::optional<absl::Duration> timeout, const Work::WaitCheck& check = nullptr);
  // See Work::Detach.
  void KeepAlive(OperationRecord& record, std::vector<std::shared_ptr<void>> memory);
  void Abort(const absl::Status& cause);

  // See Work::DescribeWait.
  std::string DescribeWait(const OperationRecord& record);
  // See Work::Then.
  void Then(OperationRecord& record, CompletionCallback done);

  // Null if this engine has no such lane.
  Lane* Find(LaneId lane) const ABSL_LOCKS_EXCLUDED(lanes_mutex_);
  // REQUIRES: this engine has the lane.
  const ProcessGroup& group(LaneId lane) const;
  // Chooses the form of an all-reduce. Returns the elements of its parts.
  std::vector<int64_t> FormAllReduce(DType dtype, int64_t count, Request& request) const;

  EngineCounters counters();
  absl::Status status();
  size_t scratch_peak_bytes() const { return scratch_.peak_bytes(); }
  std::string RecorderJson() const { return recorder_.Json(); }
  void SetPhase(std::string phase) { recorder_.SetPhase(std::move(phase)); }
  void StartTrace() { trace_.Start(); }
  EngineTrace StopTrace() { return trace_.Stop(); }
  Bootstrap& bootstrap() const { return bootstrap_; }
  const ShareDomains& share_domains() const { return share_domains_; }
  NodeHeap& heap() const { return heap_; }
  const EngineOptions& options() const { return options_; }
  absl::Duration timeout() const { return timeout_; }

 private:
  // Gives the ranks of other nodes the parts of their counterparts on this node, if the simulation mirrors
  // nodes. Bytes stay the means over all ranks and nodes.
  void MirrorNodes(const GroupPlacement& placement, Request& request);
  GroupPlacement MakePlacement(const ProcessGroup& group, uint64_t group_hash) const;
  // Errors: kInvalidArgument (this rank is not in the group; a rank is outside of the job or occurs twice).
  absl::Status CheckGroup(const ProcessGroup& group) const;
  absl::Status CheckMessage(const OperationRecord& record, const OpOptions& options) const;
  // Fails the record of a request that was refused, and aborts the engine.
  void FailInvalid(OperationRecord& record, const absl::Status& error);
  // Gives the record the next sequence of its lane, or of messages, and queues it.
  void QueueNext(const std::shared_ptr<OperationRecord>& record) ABSL_LOCKS_EXCLUDED(lanes_mutex_);
  // Makes the lane. What can fail on one rank alone happens here.
  absl::StatusOr<std::unique_ptr<Lane>> MakeLane(const ProcessGroup& group, LanePurpose purpose);
  // By index: true if this engine has no such lane. All later indices are free.
  std::vector<bool> FreeIndices() const ABSL_LOCKS_EXCLUDED(lanes_mutex_);
  absl::StatusOr<LaneId> Install(int index, std::unique_ptr<Lane> lane) ABSL_LOCKS_EXCLUDED(lanes_mutex_);
  // Both REQUIRE: the caller has the turn to form a lane. The first returns the errors of all ranks, the
  // second those of this rank.
  absl::StatusOr<LaneId> AddLaneOfAll(const ProcessGroup& group, LanePurpose purpose);
  absl::StatusOr<LaneId> AddOwnLaneOfAll(const ProcessGroup& group, LanePurpose purpose);
  absl::StatusOr<std::unique_ptr<EngineCore>> MakeCore(WireLink& link);
  // Clears this rank's flags, and makes a core with empty lanes on a new link.
  struct FreshCore {
    std::unique_ptr<WireLink> link;  // Outlives the core.
    std::unique_ptr<EngineCore> core;
  };
  absl::StatusOr<FreshCore> MakeFreshCore(const Deadline& deadline);
  // Replaces the failed core and its link, and restarts the sequences of all lanes.
  void Install(FreshCore fresh);
  // After a failure: waits until no data from other nodes arrives in buffers of failed operations, and none
  // leaves from them. Waits at most a few seconds for data that leaves: a large send whose receive was
  // canceled never completes, and MPI reads its buffer no more.
  // Errors: kDeadlineExceeded (names the ranks whose data has not arrived).
  absl::Status AwaitAbandonedTransfers(const Deadline& deadline);
  // Sets timeout_ and share_domains_. Errors: an option of this rank is invalid.
  absl::Status ReadOptions();
  // Starts the progress thread with its core, and the watchdog.
  // Errors: kResourceExhausted (the system gives the process no thread; names the limits).
  absl::Status StartThreads(std::unique_ptr<EngineCore> core);
  // The options that are the same on all ranks, or the error of this rank's.
  absl::StatusOr<std::vector<OptionValue>> OptionsOfAllRanks(const absl::Status& valid) const;
  // Extends the watchdog's limits, if there is one, for a task of at most `timeout` from now.
  std::optional<Watchdog::Extension> ExtendWatchdog(Watchdog::Task task, absl::Duration timeout);

  Bootstrap& bootstrap_;
  NodeHeap& heap_;
  const EngineOptions options_;
  absl::Duration timeout_ = kFallbackTimeout;  // Set by Open.
  ShareDomains share_domains_;                 // Set by Open.
  bool shares_core_ = false;                   // Ranks of the node share hardware threads. Set by Open.
  const CreditRules credit_rules_;
  BufferPool scratch_;
  Recorder recorder_;
  TraceLog trace_;
  std::unique_ptr<NodeLink> node_;
  std::unique_ptr<WireLink> link_;
  EngineCounters counters_;  // Written by the core. Read through EngineCore::counters().
  std::array<std::atomic<int64_t>, kLanePurposes> logical_bytes_{};  // By purpose of the lane.
  int lane_limit_ = 0;  // Lane indices are below it. The same on all ranks.
  // The thread that has the turn forms a lane, and alone uses the members of this block. See Note [Lane
  // indices].
  Turn forming_;
  using LaneKey = std::tuple<std::vector<int>, LanePurpose, int>;  // Ranks, purpose, number.
  std::map<LaneKey, LaneId> shared_lanes_;
  std::map<LaneKey, LaneId> group_lanes_;
  int lanes_of_all_ = 0;  // Lanes that all ranks have added. See IndexOfLaneOfAll.

  mutable Mutex lanes_mutex_;  // Also held from the choice of a sequence until the operation is queued.
  std::vector<std::unique_ptr<Lane>> lanes_ ABSL_GUARDED_BY(lanes_mutex_);  // By index. Null: none.
  uint64_t next_message_ ABSL_GUARDED_BY(lanes_mutex_) = 1;
  ResetRounds reset_rounds_;
  std::optional<EngineShell> shell_;
  std::unique_ptr<Watchdog> watchdog_;  // Null without one.
};

}  // namespace weft
