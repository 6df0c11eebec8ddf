#include "src/comm/engine/engine_core.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/comm/trees/node_graph.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Run time after which the flight recorder gets the ranks that an operation waits for.
constexpr int64_t kSlowOperationNs = 1'000'000'000;

}  // namespace

EngineCore::EngineCore(const Environment& environment)
    : env_(environment),
      wire_(environment.wire, environment.tags, environment.options, environment.counters, environment.trace,
            environment.credit_rules),
      messages_({env_.rank, env_.nodes, env_.node, wire_, *this, env_.scratch, env_.counters, env_.options,
                 env_.credit_rules},
                *this) {}

absl::Status EngineCore::AddLane(int index, std::string name, GroupPlacement placement, LanePurpose purpose) {
  auto lane = std::make_unique<Lane>(std::move(name), std::move(placement));
  if (lane->placement.spans_nodes()) WEFT_RETURN_IF_ERROR(wire_.CheckLane(index, lane->name));
  if (const absl::Status opened = env_.node.OpenLane(index, CountersOf(lane->placement.size())); !opened.ok())
    return Annotate(opened, absl::StrCat("flags of lane ", lane->name));
  if (purpose == LanePurpose::kContext && lane->placement.spans_nodes()) wire_.EnableBackgroundWindow();
  if (static_cast<size_t>(index) >= lanes_.size()) lanes_.resize(static_cast<size_t>(index) + 1);
  WEFT_CHECK(lanes_[static_cast<size_t>(index)] == nullptr, "a lane was added at an index that is in use");
  lanes_[static_cast<size_t>(index)] = std::move(lane);
  return absl::OkStatus();
}

void EngineCore::Submit(std::shared_ptr<OperationRecord> record) {
  if (!status_.ok()) {
    record->error = absl::AbortedError(absl::StrCat("the engine has failed: ", status_.message()));
    record->state.store(OperationState::kFailed, std::memory_order_release);
    return;
  }
  ++unfinished_;
  env_.recorder.Record(*record);
  if (record->message) return messages_.Submit(std::move(record));
  Lane& lane = *lanes_[static_cast<size_t>(record->lane)];
  if (!std::exchange(lane.active, true)) active_.push_back(record->lane);
  lane.submitted = record->descriptor.sequence;
  lane.queued.push_back(std::move(record));
}

absl::Status EngineCore::Leave() {
  leaving_ = true;
  if (!status_.ok()) return absl::OkStatus();  // Peers have a failure notice.
  for (int i = 0; i < static_cast<int>(lanes_.size()); ++i) {
    if (lanes_[static_cast<size_t>(i)] != nullptr) WEFT_RETURN_IF_ERROR(LeaveLane(i));
  }
  return messages_.Leave();
}

absl::Status EngineCore::LeaveLane(int index) {
  Lane& lane = *lanes_[static_cast<size_t>(index)];
  const GroupPlacement& placement = lane.placement;
  Descriptor descriptor;
  descriptor.sequence = lane.submitted + 1;
  descriptor.leaves = true;
  // See Note [Descriptor ring].
  if (lane.left || descriptor.sequence > ConsumedByAll(index) + NodeLink::kSlots) return absl::OkStatus();
  lane.left = true;
  if (!placement.local_peers().empty()) {
    env_.node.Publish(index, descriptor);
    env_.node.Arrive(NodeLink::MeetingOf(index, placement), descriptor.sequence, HashOnNode(descriptor));
  }
  for (const int peer : placement.local_peers()) env_.node.Ring(placement.WorldRank(peer));
  for (const int node : NeighborNodes(placement.NodeOf(placement.me()), placement.node_count())) {
    const int peer = placement.WorldRank(placement.PartLeader(node, placement.me()));
    WEFT_RETURN_IF_ERROR(wire_.AnnounceEmptyPart({index, descriptor.sequence, peer, 0}, descriptor));
  }
  return absl::OkStatus();
}

void EngineCore::RaisePriority(OperationRecord& operation, bool until_released) {
  if (operation.message) {
    operation.message->awaited = true;
    return;
  }
  const uint64_t sequence = operation.descriptor.sequence;
  Lane& awaited = *lanes_[static_cast<size_t>(operation.lane)];
  if (until_released) awaited.awaited_until_release = std::max(awaited.awaited_until_release, sequence);
  if (sequence <= awaited.awaited_until_ready) return;
  awaited.awaited_until_ready = sequence;
  for (const auto& record : awaited.queued) {
    if (record->descriptor.sequence > sequence) break;
    const auto raise = [this](OperationRecord* earlier, bool until_earlier_is_released) {
      if (earlier != nullptr) RaisePriority(*earlier, until_earlier_is_released);
    };
    raise(record->after.get(), false);
    raise(record->gate.get(), true);
  }
}

void EngineCore::KeepAlive(OperationRecord& record, std::vector<std::shared_ptr<void>>&& memory) {
  if (record.State() != OperationState::kReleased) record.kept = std::move(memory);
}

bool EngineCore::AddCallback(OperationRecord& record, CompletionCallback& done) {
  if (record.IsReady() || record.State() == OperationState::kFailed) return false;
  record.callbacks.push_back(std::move(done));
  return true;
}

void EngineCore::QueueCallbacks(OperationRecord& record, const absl::Status& status) {
  for (CompletionCallback& done : record.callbacks) callbacks_.push_back({std::move(done), status});
  record.callbacks.clear();
}

Priority EngineCore::PriorityOf(const Lane& lane, const OperationRecord& record) const {
  return record.descriptor.sequence <= lane.awaited_until_ready ? Priority::kCritical : record.priority;
}

Priority EngineCore::PriorityOf(const Lane& lane) const {
  Priority highest = Priority::kBulk;
  for (const auto& record : lane.running) {
    if (!record->IsReady()) highest = std::min(highest, PriorityOf(lane, *record));
  }
  if (!lane.queued.empty()) highest = std::min(highest, PriorityOf(lane, *lane.queued.front()));
  return highest;
}

OperationContext EngineCore::ContextOf(Lane& lane, const std::shared_ptr<OperationRecord>& record,
                                       bool head) {
  return {lane.placement,
          env_.node,
          wire_,
          *this,
          env_.scratch,
          env_.counters,
          env_.options,
          record,
          PriorityOf(lane, *record),
          head,
          record->descriptor.sequence <= lane.awaited_until_ready,
          record->descriptor.sequence <= lane.awaited_until_release};
}

void EngineCore::Push(DataTask task) {
  tasks_[static_cast<size_t>(task.priority)].push_back(std::move(task));
}

std::optional<DataTask> EngineCore::PopTask() {
  for (std::deque<DataTask>& tasks : tasks_) {
    if (tasks.empty()) continue;
    DataTask task = std::move(tasks.front());
    tasks.pop_front();
    return task;
  }
  return std::nullopt;
}

bool EngineCore::has_tasks() const {
  return std::any_of(tasks_.begin(), tasks_.end(), [](const auto& tasks) { return !tasks.empty(); });
}

bool EngineCore::has_local_work() const {
  return !messages_.is_idle() || std::any_of(active_.begin(), active_.end(), [this](int index) {
    const Lane& lane = *lanes_[static_cast<size_t>(index)];
    return !lane.queued.empty() || (!lane.running.empty() && !lane.running.back()->operation->drained());
  });
}

void EngineCore::FinishTask(const DataTask& task, const absl::Status& moved) {
  if (!moved.ok()) Fail(Annotate(moved, Describe(*task.record)));
  if (task.record->State() != OperationState::kFailed) task.owner->OnTaskDone(task.ticket);
}

absl::Status EngineCore::CheckPeerFailures() {
  heard_ = env_.node.ReadFailure();
  if (!heard_) heard_ = wire_.failure();
  if (!heard_) return absl::OkStatus();
  return absl::Status(heard_->cause.code(),
                      absl::StrCat("rank ", heard_->rank, ": ", heard_->cause.message()));
}

bool EngineCore::Poll(int64_t now_ns) {
  env_.node.PublishHeartbeat();
  if (!status_.ok()) {
    broadcasting_failure_ = broadcasting_failure_ && wire_.FlushControlMessages();
    return false;
  }
  now_ns_ = now_ns;
  const absl::StatusOr<bool> advanced = PollLanes();
  if (!advanced.ok()) {
    Fail(advanced.status());
    return true;
  }
  RecordSlowOperations();
  return *advanced;
}

absl::StatusOr<bool> EngineCore::PollLanes() {
  bool advanced = false;
  if (env_.nodes.node_count() > 1) {
    WEFT_ASSIGN_OR_RETURN(advanced, wire_.Poll(now_ns_));
  }
  WEFT_RETURN_IF_ERROR(CheckPeerFailures());
  std::vector<std::pair<Priority, int>> order;
  uses_wire_ = false;
  awaits_slot_ = false;
  std::erase_if(active_, [this](int index) {
    Lane& lane = *lanes_[static_cast<size_t>(index)];
    lane.active = !lane.queued.empty() || !lane.running.empty();
    return !lane.active;
  });
  for (const int i : active_) {
    const Lane& lane = *lanes_[static_cast<size_t>(i)];
    if (leaving_) WEFT_RETURN_IF_ERROR(LeaveLane(i));
    order.emplace_back(PriorityOf(lane), i);
    uses_wire_ |= lane.placement.spans_nodes();
    awaits_slot_ |= AwaitsSlot(i);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [priority, index] : order) {
    WEFT_ASSIGN_OR_RETURN(const bool stepped, StepLane(index));
    advanced |= stepped;
  }
  if (leaving_) WEFT_RETURN_IF_ERROR(messages_.Leave());
  WEFT_ASSIGN_OR_RETURN(const bool any_message, messages_.Poll());
  uses_wire_ |= messages_.uses_wire();
  return advanced || any_message;
}

bool EngineCore::MayStart(int index, const OperationRecord& next) const {
  const Lane& lane = *lanes_[static_cast<size_t>(index)];
  if (!lane.running.empty() && !lane.running.back()->IsReady()) return false;
  if (next.after != nullptr && !next.after->IsReady()) return false;
  if (next.gate != nullptr && next.gate->State() != OperationState::kReleased) return false;
  // See Note [Descriptor ring].
  return next.descriptor.sequence <= ConsumedByAll(index) + NodeLink::kSlots;
}

bool EngineCore::AwaitsSlot(int index) const {
  const Lane& lane = *lanes_[static_cast<size_t>(index)];
  return !lane.queued.empty() &&
         lane.queued.front()->descriptor.sequence > ConsumedByAll(index) + NodeLink::kSlots;
}

uint64_t EngineCore::ConsumedByAll(int index) const {
  const Lane& lane = *lanes_[static_cast<size_t>(index)];
  if (lane.placement.local_peers().empty()) return lane.consumed;
  return env_.node.ConsumedByAll(NodeLink::MeetingOf(index, lane.placement));
}

absl::StatusOr<bool> EngineCore::StepLane(int index) {
  Lane& lane = *lanes_[static_cast<size_t>(index)];
  WEFT_ASSIGN_OR_RETURN(bool advanced, StepRunning(index));
  while (!lane.queued.empty() && MayStart(index, *lane.queued.front())) {
    std::shared_ptr<OperationRecord> record = std::move(lane.queued.front());
    lane.queued.pop_front();
    record->after.reset();
    record->gate.reset();
    SetRunning(*record);
    lane.running.push_back(std::move(record));
    advanced = true;
    WEFT_ASSIGN_OR_RETURN(const bool stepped, StepRunning(index));
    advanced |= stepped;
  }
  return ReleaseInOrder(index) || advanced;
}

absl::StatusOr<bool> EngineCore::StepRunning(int index) {
  Lane& lane = *lanes_[static_cast<size_t>(index)];
  bool advanced = false;
  bool head = true;
  for (size_t i = 0; i < lane.running.size(); ++i) {
    const std::shared_ptr<OperationRecord>& record = lane.running[i];
    if (record->operation->drained()) continue;
    OperationContext context = ContextOf(lane, record, head);
    WEFT_ASSIGN_OR_RETURN(const Operation::Progress progress, record->operation->Step(context));
    advanced |= progress == Operation::Progress::kAdvanced;
    if (!record->IsReady()) {
      head = false;
      if (record->operation->ready()) SetReady(*record);
    }
  }
  return advanced;
}

void EngineCore::OnMessageStarted(OperationRecord& record) { SetRunning(record); }

void EngineCore::OnMessageFinished(OperationRecord& record) {
  SetReady(record);
  SetReleased(record);
}

void EngineCore::SetRunning(OperationRecord& record) {
  record.started_ns = now_ns_;
  record.state.store(OperationState::kRunning, std::memory_order_release);
  env_.recorder.Record(record);
}

void EngineCore::SetReady(OperationRecord& record) {
  record.ready_ns = now_ns_;
  record.state.store(OperationState::kReady, std::memory_order_release);
  env_.recorder.Record(record);
  QueueCallbacks(record, absl::OkStatus());
  env_.node.Ring(env_.rank);
}

void EngineCore::SetReleased(OperationRecord& record) {
  record.released_ns = now_ns_;
  record.operation.reset();
  std::move(record.kept.begin(), record.kept.end(), std::back_inserter(released_memory_));
  record.kept.clear();
  record.state.store(OperationState::kReleased, std::memory_order_release);
  env_.recorder.Record(record);
  env_.trace.AddOperation(record);
  --unfinished_;
  ++env_.counters.operations;
  env_.node.Ring(env_.rank);
}

bool EngineCore::ReleaseInOrder(int index) {
  Lane& lane = *lanes_[static_cast<size_t>(index)];
  bool advanced = false;
  for (const auto& record : lane.running) {
    if (!record->operation->drained()) break;
    if (record->descriptor.sequence <= lane.consumed) continue;
    lane.consumed = record->descriptor.sequence;
    Consume(index, *record);
    advanced = true;
  }
  const uint64_t released = lane.running.empty() ? 0 : ConsumedByAll(index);
  const auto is_released = [&](const OperationRecord& record) {
    return record.descriptor.sequence <= released ||
           (record.descriptor.sequence <= lane.consumed && record.operation->is_released_when_drained());
  };
  while (!lane.running.empty() && is_released(*lane.running.front())) {
    wire_.Forget(index, lane.running.front()->descriptor.sequence);
    SetReleased(*lane.running.front());
    lane.running.pop_front();
    advanced = true;
  }
  return advanced;
}

// Wakes the peers if they may wait for this.
void EngineCore::Consume(int index, const OperationRecord& record) {
  const GroupPlacement& placement = lanes_[static_cast<size_t>(index)]->placement;
  if (placement.local_peers().empty()) return;
  const uint64_t sequence = record.descriptor.sequence;
  env_.node.Release(index, sequence);
  const bool is_last = env_.node.Consume(NodeLink::MeetingOf(index, placement), sequence);
  if (!is_last || record.operation->is_released_when_drained()) return;
  for (const int peer : placement.local_peers()) env_.node.Ring(placement.WorldRank(peer));
}

std::set<int> EngineCore::RanksYetToConsume(int index, uint64_t sequence) const {
  const Lane& lane = *lanes_[static_cast<size_t>(index)];
  std::set<int> ranks;
  for (int peer : lane.placement.local_peers()) {
    const int rank = lane.placement.WorldRank(peer);
    if (env_.node.Consumed(index, rank) < sequence) ranks.insert(rank);
  }
  return ranks;
}

std::string EngineCore::DescribeStartWait(const OperationRecord& record) {
  Lane& lane = *lanes_[static_cast<size_t>(record.lane)];
  if (!lane.running.empty() && !lane.running.back()->IsReady()) {
    return absl::StrCat("is queued behind ", Describe(*lane.running.back()), ", which ",
                        DescribeWait(*lane.running.back()));
  }
  if (record.after != nullptr && !record.after->IsReady())
    return absl::StrCat("starts after ", Describe(*record.after));
  if (record.gate != nullptr && record.gate->State() != OperationState::kReleased)
    return absl::StrCat("starts at the release of ", Describe(*record.gate), ", which ",
                        DescribeWait(*record.gate));
  if (!lane.queued.empty() && lane.queued.front().get() != &record) {
    return absl::StrCat("is queued behind ", Describe(*lane.queued.front()), ", which ",
                        DescribeStartWait(*lane.queued.front()));
  }
  // The operation can only wait for its slot. See Note [Descriptor ring].
  if (lane.running.empty()) return "is about to start";
  return absl::StrCat("needs the descriptor slot of ", Describe(*lane.running.front()), ", which ",
                      DescribeWait(*lane.running.front()));
}

std::string EngineCore::DescribeWait(const OperationRecord& record) {
  if (record.message) return messages_.DescribeWait(record);
  Lane& lane = *lanes_[static_cast<size_t>(record.lane)];
  if (record.State() == OperationState::kQueued) return DescribeStartWait(record);
  std::set<int> ranks;
  for (const auto& running : lane.running) {
    if (running.get() != &record || record.operation == nullptr) continue;
    ranks = record.operation->AwaitedRanks(ContextOf(lane, running, false));
    if (record.IsReady()) ranks.merge(RanksYetToConsume(record.lane, record.descriptor.sequence));
  }
  if (ranks.empty()) return "waits for data movement on this rank";
  return absl::StrCat("waits for rank(s) ", absl::StrJoin(ranks, ", "));
}

void EngineCore::RecordSlowOperations() {
  if (now_ns_ < next_slow_check_ns_) return;
  next_slow_check_ns_ = now_ns_ + kSlowOperationNs;
  for (const auto& message : messages_.unfinished())
    env_.recorder.RecordWait(*message, messages_.DescribeWait(*message));
  for (const int index : active_) {
    const Lane& lane = *lanes_[static_cast<size_t>(index)];
    if (!lane.running.empty() && now_ns_ - lane.running.front()->started_ns < kSlowOperationNs) continue;
    RecordWaitOfFirst(lane);
  }
}

void EngineCore::RecordWaitOfFirst(const Lane& lane) {
  for (const auto& record : lane.running) {
    if (record->IsReady()) continue;
    env_.recorder.RecordWait(*record, DescribeWait(*record));
    return;
  }
}

std::vector<int> EngineCore::OtherRanks(bool of_this_node) const {
  std::vector<int> others;
  for (int rank = 0; rank < env_.nodes.size(); ++rank) {
    if (rank != env_.rank && env_.nodes.SameNode(rank, env_.rank) == of_this_node) others.push_back(rank);
  }
  return others;
}

std::vector<int> EngineCore::RanksToTell() const {
  constexpr int kRanksOfANode = 3;  // News passes a node unless so many of its ranks are silent.
  const std::vector<int>& node_of = env_.nodes.node_of_rank;
  const int own = node_of[static_cast<size_t>(env_.rank)];
  std::map<int, std::vector<int>> ranks_of;
  for (const int node : NeighborNodes(own, env_.nodes.node_count())) ranks_of[node];
  int place = 0;  // Of this rank in its node.
  for (int rank = 0; rank < env_.nodes.size(); ++rank) {
    const int node = node_of[static_cast<size_t>(rank)];
    if (node == own && rank < env_.rank) ++place;
    if (const auto found = ranks_of.find(node); found != ranks_of.end()) found->second.push_back(rank);
  }
  std::set<int> told;
  for (const auto& [node, ranks] : ranks_of) {
    const auto count = static_cast<int>(ranks.size());
    for (int i = 0; i < std::min(kRanksOfANode, count); ++i)
      told.insert(ranks[static_cast<size_t>((place + i) % count)]);
  }
  // Ranks outside of a group may have destroyed their engines, so news also goes along the group's nodes.
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    const GroupPlacement& placement = lane->placement;
    for (const int node : NeighborNodes(placement.NodeOf(placement.me()), placement.node_count()))
      told.insert(placement.WorldRank(placement.PartLeader(node, placement.me())));
  }
  return {told.begin(), told.end()};
}

void EngineCore::RequestHeartbeat() {
  heartbeats_at_request_.clear();
  for (const int rank : OtherRanks(/*of_this_node=*/true)) {
    heartbeats_at_request_[rank] = env_.node.Heartbeats(rank);
    env_.node.Ring(rank);
  }
  wire_.RequestHeartbeat(OtherRanks(/*of_this_node=*/false));
}

std::set<int> EngineCore::UnresponsiveRanks() const {
  std::set<int> unresponsive;
  for (const auto& [rank, beats] : heartbeats_at_request_) {
    if (env_.node.Heartbeats(rank) == beats) unresponsive.insert(rank);
  }
  for (const int rank : OtherRanks(/*of_this_node=*/false)) {
    if (!wire_.HeartbeatReplies().contains(rank)) unresponsive.insert(rank);
  }
  return unresponsive;
}

void EngineCore::Fail(const absl::Status& cause) {
  if (!status_.ok()) return;
  status_ = cause;
  broadcasting_failure_ = true;
  for (const int index : active_) RecordWaitOfFirst(*lanes_[static_cast<size_t>(index)]);
  const std::vector<std::shared_ptr<OperationRecord>> messages = messages_.unfinished();
  for (const auto& message : messages) env_.recorder.RecordWait(*message, messages_.DescribeWait(*message));
  env_.recorder.RecordFailure(cause);
  const NodeLink::FailureNotice notice = heard_.value_or(NodeLink::FailureNotice{env_.rank, cause});
  env_.node.PublishFailure(notice);
  if (!heard_ || env_.credit_rules.failures_are_relayed) wire_.BroadcastFailure(notice, RanksToTell());
  wire_.Abandon();
  for (std::deque<DataTask>& tasks : tasks_) tasks.clear();
  for (const int index : std::exchange(active_, {})) {
    Lane& lane = *lanes_[static_cast<size_t>(index)];
    lane.active = false;
    for (auto* records : {&lane.running, &lane.queued}) {
      for (const std::shared_ptr<OperationRecord>& record : *records) FailRecord(record, cause);
      records->clear();
    }
  }
  for (const auto& message : messages) FailRecord(message, cause);
  unfinished_ = 0;
  env_.node.Ring(env_.rank);
}

void EngineCore::FailRecord(const std::shared_ptr<OperationRecord>& record, const absl::Status& cause) {
  record->error = cause;
  if (!record->IsReady()) record->state.store(OperationState::kFailed, std::memory_order_release);
  QueueCallbacks(*record, cause);
  env_.recorder.Record(*record);
  quarantine_.push_back(record);
}

void EngineCore::ReleaseQuarantine() {
  for (const std::shared_ptr<OperationRecord>& record : quarantine_) {
    if (record->IsReady()) record->state.store(OperationState::kReleased, std::memory_order_release);
  }
}

}  // namespace weft
