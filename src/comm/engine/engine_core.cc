#include "src/comm/engine/engine_core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {

EngineCore::EngineCore(const Environment& environment)
    : env_(environment),
      mail_(env_.link, env_.counters),
      wire_(env_.link, mail_, env_.tags, env_.options, env_.counters, env_.trace, env_.credit_rules),
      messages_({env_.rank, env_.nodes, env_.node, wire_, mail_, *this, env_.scratch, env_.counters,
                 env_.options, env_.credit_rules},
                *this),
      job_spans_nodes_(env_.nodes.node_count() > 1),
      late_ranks_(env_.rank) {}

absl::Status EngineCore::AddLane(int index, std::string name, GroupPlacement placement, LanePurpose purpose) {
  auto lane = std::make_unique<Lane>(std::move(name), std::move(placement));
  if (lane->placement.spans_nodes()) WEFT_RETURN_IF_ERROR(wire_.CheckLane(index, lane->name));
  if (const absl::Status opened = env_.node.OpenLane(index, CountersOf(lane->placement)); !opened.ok())
    return Annotate(opened, absl::StrCat("flags of lane ", lane->name));
  if (purpose == LanePurpose::kContext && lane->placement.spans_nodes()) wire_.EnableBackgroundWindow();
  if (static_cast<size_t>(index) >= lanes_.size()) lanes_.resize(static_cast<size_t>(index) + 1);
  WEFT_CHECK(lanes_[static_cast<size_t>(index)] == nullptr, "a lane was added at an index that is in use");
  lanes_[static_cast<size_t>(index)] = std::move(lane);
  return absl::OkStatus();
}

void EngineCore::Submit(std::shared_ptr<OperationRecord> record) {
  if (!status_.ok() || leaving_) {
    record->error = absl::AbortedError(
        status_.ok() ? absl::StrCat(Describe(*record),
                                    ": the engine is being destroyed; wait for an operation whose callback "
                                    "submits another one before you destroy it")
                     : absl::StrCat("the engine has failed: ", status_.message()));
    record->state.store(OperationState::kFailed, std::memory_order_release);
    return;
  }
  ++unfinished_;
  now_ns_ = std::max(now_ns_, record->submitted_ns);  // A poll may have read the clock before.
  if (record->message) {
    env_.recorder.RecordNew(*record);
    return messages_.Submit(std::move(record));
  }
  Lane& lane = *lanes_[static_cast<size_t>(record->lane)];
  if (!std::exchange(lane.active, true)) active_.push_back(record->lane);
  lane.submitted = record->descriptor.sequence;
  lane.queued.push_back(std::move(record));
  // An operation that starts in the next poll, as most do, is recorded once it runs.
  if (lane.queued.size() > 1 || !lane.running.empty()) RecordQueued(lane);
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

OperationContext EngineCore::ContextOf(Lane& lane, const std::shared_ptr<OperationRecord>& record) {
  return {.placement = lane.placement,
          .node = env_.node,
          .wire = wire_,
          .tasks = *this,
          .scratch = env_.scratch,
          .counters = env_.counters,
          .options = env_.options,
          .record = record,
          .priority = PriorityOf(lane, *record),
          .is_ready_awaited = record->descriptor.sequence <= lane.awaited_until_ready,
          .is_release_awaited = record->descriptor.sequence <= lane.awaited_until_release,
          .shares_core = env_.shares_core};
}

bool EngineCore::RunAtOnce(const WholeMoveTask& task) {
  // A thread that queues a task takes the lock twice more and polls again, which takes about as long as to
  // copy a sixteenth of a piece (16 KiB) between two cores.
  const int64_t most_bytes = env_.options.piece_bytes / 16;
  if (env_.moves_take_virtual_time) return false;
  if (static_cast<int64_t>(std::max(task.size.written, task.size.read)) > most_bytes) return false;
  task.move->Run();
  // The next poll continues the operation. A thread of this rank that should do that may be asleep.
  must_wake_threads_ = true;
  return true;
}

void EngineCore::Push(DataTask task) {
  // Peers may wait for it, whatever its priority on this rank.
  if (task.is_immediate) {
    tasks_[static_cast<size_t>(Priority::kCritical)].push_front(std::move(task));
    return;
  }
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

std::optional<DataTask> EngineCore::PopImmediateTask() {
  const auto urgent =
      std::find_if(tasks_.begin(), tasks_.end(), [](const auto& tasks) { return !tasks.empty(); });
  if (urgent == tasks_.end() || !urgent->front().is_immediate) return std::nullopt;
  return PopTask();
}

bool EngineCore::has_tasks() const {
  return std::any_of(tasks_.begin(), tasks_.end(), [](const auto& tasks) { return !tasks.empty(); });
}

bool EngineCore::has_local_work() const {
  if (is_idle()) return false;
  return !messages_.is_idle() || std::any_of(active_.begin(), active_.end(), [this](int index) {
    const Lane& lane = *lanes_[static_cast<size_t>(index)];
    return !lane.queued.empty() ||
           std::any_of(lane.running.begin(), lane.running.end(),
                       [](const auto& record) { return !record->operation->drained(); });
  });
}

void EngineCore::FinishTask(const DataTask& task, const absl::Status& moved) {
  if (!moved.ok()) Fail(Annotate(moved, Describe(*task.record)));
  if (task.record->State() == OperationState::kFailed) return;
  for (int64_t i = 0; i < task.slices; ++i) task.owner->OnTaskDone(task.ticket + i);
}
bool EngineCore::Poll(int64_t now_ns) {
  env_.node.PublishHeartbeat();
  if (!status_.ok()) {
    broadcasting_failure_ = broadcasting_failure_ && mail_.Flush();
    return false;
  }
  now_ns_ = std::max(now_ns_, now_ns);
  const absl::StatusOr<bool> advanced = PollLanes();
  if (!advanced.ok()) {
    Fail(advanced.status());
    return true;
  }
  RecordSlowOperations();
  return *advanced;
}

absl::StatusOr<bool> EngineCore::PollLanes() {
  absl::StatusOr<bool> polled = false;
  if (job_spans_nodes_) polled = wire_.Poll(now_ns_);
  // Before an error of the link: a rank that fails closes its connections after its notice.
  WEFT_RETURN_IF_ERROR(CheckPeerFailures());
  WEFT_ASSIGN_OR_RETURN(bool advanced, std::move(polled));
  if (job_spans_nodes_) AnswerQuestions();
  order_.clear();
  uses_wire_ = false;
  if (leaving_) WEFT_RETURN_IF_ERROR(LeaveLanes());
  awaits_slot_ = !lanes_to_leave_.empty();
  std::erase_if(active_, [this](int index) {
    Lane& lane = *lanes_[static_cast<size_t>(index)];
    lane.active = !lane.queued.empty() || !lane.running.empty();
    return !lane.active;
  });
  for (const int i : active_) {
    const Lane& lane = *lanes_[static_cast<size_t>(i)];
    order_.emplace_back(PriorityOf(lane), i);
    uses_wire_ |= lane.placement.spans_nodes();
    awaits_slot_ |= !lane.queued.empty() && !HasSlot(i, lane.queued.front()->descriptor.sequence);
  }
  std::sort(order_.begin(), order_.end());
  for (const auto& [priority, index] : order_) {
    WEFT_ASSIGN_OR_RETURN(const bool stepped, StepLane(index));
    advanced |= stepped;
  }
  if (leaving_) WEFT_RETURN_IF_ERROR(messages_.Leave());
  WEFT_ASSIGN_OR_RETURN(const bool any_message, messages_.Poll());
  uses_wire_ |= messages_.uses_wire();
  // Data that arrived before a connection was lost comes first.
  if (!advanced && !any_message) WEFT_RETURN_IF_ERROR(CheckLostPeers());
  return advanced || any_message;
}

bool EngineCore::MayStart(int index, const OperationRecord& next) {
  const Lane& lane = *lanes_[static_cast<size_t>(index)];
  if (!lane.running.empty() && !lane.running.back()->IsReady()) return false;
  if (next.after != nullptr && !next.after->IsReady()) return false;
  if (next.gate != nullptr && next.gate->State() != OperationState::kReleased) return false;
  return HasSlot(index, next.descriptor.sequence);
}

bool EngineCore::HasSlot(int index, uint64_t sequence) {
  return sequence <= NodeLink::kSlots || IsConsumedByAll(index, sequence - NodeLink::kSlots);
}

bool EngineCore::IsConsumedByAll(int index, uint64_t sequence) {
  Lane& lane = *lanes_[static_cast<size_t>(index)];
  if (sequence <= lane.consumed_by_all) return true;
  lane.consumed_by_all = lane.placement.local_peers().empty()
                             ? lane.consumed
                             : env_.node.ConsumedByAll(NodeLink::LocalGroupOf(index, lane.placement));
  return sequence <= lane.consumed_by_all;
}

absl::StatusOr<bool> EngineCore::StepLane(int index) {
  Lane& lane = *lanes_[static_cast<size_t>(index)];
  WEFT_ASSIGN_OR_RETURN(bool advanced, StepRunning(index));
  while (!lane.queued.empty() && MayStart(index, *lane.queued.front())) {
    RecordReady(lane);
    std::shared_ptr<OperationRecord> record = std::move(lane.queued.front());
    lane.queued.pop_front();
    record->after.reset();
    record->gate.reset();
    SetRunning(*record);
    if (!RecordNew(lane, *record)) env_.recorder.Record(*record);
    if (lane.placement.spans_nodes()) wire_.BeginOperation(now_ns_);
    lane.running.push_back(std::move(record));
    advanced = true;
    WEFT_ASSIGN_OR_RETURN(const bool stepped, StepRunning(index));
    advanced |= stepped;
  }
  advanced |= ReleaseInOrder(index);
  RecordReady(lane);
  RecordQueued(lane);
  return advanced;
}

void EngineCore::RecordQueued(Lane& lane) {
  auto next = lane.queued.end();
  while (next != lane.queued.begin() && (*std::prev(next))->descriptor.sequence > lane.recorded) --next;
  for (; next != lane.queued.end(); ++next) RecordNew(lane, **next);
}

bool EngineCore::RecordNew(Lane& lane, const OperationRecord& record) {
  if (record.descriptor.sequence <= lane.recorded) return false;
  lane.recorded = record.descriptor.sequence;
  env_.recorder.RecordNew(record);
  return true;
}

void EngineCore::RecordReady(Lane& lane) {
  for (const auto& record : lane.running) {
    if (!record->IsReady()) break;
    if (record->descriptor.sequence <= lane.recorded_ready) continue;
    lane.recorded_ready = record->descriptor.sequence;
    env_.recorder.Record(*record);
  }
}

absl::StatusOr<bool> EngineCore::StepRunning(int index) {
  Lane& lane = *lanes_[static_cast<size_t>(index)];
  bool advanced = false;
  for (size_t i = 0; i < lane.running.size(); ++i) {
    const std::shared_ptr<OperationRecord>& record = lane.running[i];
    if (record->operation->drained()) continue;
    OperationContext context = ContextOf(lane, record);
    WEFT_ASSIGN_OR_RETURN(const Operation::Progress progress, record->operation->Step(context));
    advanced |= progress == Operation::Progress::kAdvanced;
    if (!record->IsReady() && record->operation->ready()) SetReady(*record);
  }
  return advanced;
}

void EngineCore::OnMessageStarted(OperationRecord& record) {
  SetRunning(record);
  env_.recorder.Record(record);
}

void EngineCore::OnMessageFinished(OperationRecord& record) {
  SetReady(record);
  SetReleased(record);
}

void EngineCore::SetRunning(OperationRecord& record) {
  record.started_ns = now_ns_;
  record.state.store(OperationState::kRunning, std::memory_order_release);
}

void EngineCore::SetReady(OperationRecord& record) {
  record.ready_ns = now_ns_;
  record.state.store(OperationState::kReady, std::memory_order_release);
  QueueCallbacks(record, absl::OkStatus());
  must_wake_threads_ = true;
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
  must_wake_threads_ = true;
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
  const auto is_released = [&](const OperationRecord& record) {
    const uint64_t sequence = record.descriptor.sequence;
    return sequence <= lane.consumed &&
           (record.operation->is_released_when_drained() || IsConsumedByAll(index, sequence));
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
  const bool is_last = env_.node.Consume(NodeLink::LocalGroupOf(index, placement), sequence);
  if (!is_last || record.operation->is_released_when_drained()) return;
  for (const int peer : placement.local_peers()) env_.node.Ring(placement.BootstrapRank(peer));
}
}  // namespace weft
