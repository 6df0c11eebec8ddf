#include "src/comm/engine/engine_impl.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/comm/collectives/operations.h"
#include "src/comm/links/shared_memory_link.h"
#include "src/comm/links/sim_node_link.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"

namespace weft {
namespace {

// The watchdog acts later than the deadline of Wait, so that a waiting thread can report the error itself.
constexpr absl::Duration kWatchdogDelay = absl::Seconds(3);

// Longer deadlines are cut to this one: the sum of a time and a duration must fit 64 bits.
constexpr absl::Duration kLongestTask = absl::Hours(24 * 365);

// Longest time for which the destructor waits for messages in flight.
constexpr absl::Duration kMessagesTimeout = absl::Seconds(5);

absl::Status CheckOptions(const EngineOptions& options, Runtime& runtime) {
  // Limit of slice_bytes and piece_bytes. MPI counts the bytes of a message in an int.
  constexpr int64_t kMaxBytes = int64_t{1} << 28;
  struct Field {
    const char* name;
    int64_t value;
    int64_t max;
  };
  constexpr int64_t kMaxWindowBytes =
      std::numeric_limits<int64_t>::max() / 4;  // Windows are added and doubled.
  for (const Field& field :
       {Field{"slice_bytes", options.slice_bytes, kMaxBytes},
        Field{"piece_bytes", options.piece_bytes, kMaxBytes},
        Field{"lane_window_bytes", options.lane_window_bytes, kMaxWindowBytes},
        Field{"yield_window_bytes", options.yield_window_bytes, kMaxWindowBytes},
        Field{"background_window_bytes", options.background_window_bytes, kMaxWindowBytes},
        Field{"max_budget_bytes", options.max_budget_bytes, kMaxWindowBytes},
        Field{"reduce_fan_in", options.reduce_fan_in, std::numeric_limits<int>::max()},
        Field{"reduce_window_bytes", options.reduce_window_bytes, kMaxWindowBytes},
        Field{"recorder_entries", options.recorder_entries, kMaxWindowBytes}}) {
    if (field.value >= 1 && field.value <= field.max) continue;
    return absl::InvalidArgumentError(absl::StrCat("engine option ", field.name, " is ", field.value,
                                                   "; it must be from 1 to ", field.max));
  }
  if (options.watchdog && runtime.simulation() != nullptr) {
    return absl::InvalidArgumentError(
        "engine option watchdog is on, which simulated ranks do not support; switch it off");
  }
  if (options.timeout.value_or(absl::InfiniteDuration()) > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "engine option timeout is ", absl::FormatDuration(*options.timeout), "; it must be positive"));
}

absl::StatusOr<std::unique_ptr<NodeLink>> OpenNodeLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                       absl::Duration timeout) {
  return bootstrap.runtime().simulation() != nullptr ? MakeSimNodeLink(bootstrap, heap, timeout)
                                                     : MakeSharedMemoryLink(bootstrap, heap, timeout);
}

std::string LaneName(const ProcessGroup& group, LanePurpose purpose) {
  return absl::StrCat(group.name, "/", ToAbsl(Name(purpose)));
}

std::unique_ptr<Operation> MakeOperation(const GroupPlacement& placement, CollectivePlan plan,
                                         bool mirrored) {
  const bool is_small_sum =
      plan.kind == OpKind::kAllReduce && IsSmallAllReduce(placement, plan.parts.total(), plan.dtype);
  if (plan.kind == OpKind::kBarrier || is_small_sum)
    return MakeSmallCollective(placement, std::move(plan), mirrored);
  switch (plan.kind) {
    case OpKind::kReduceScatter:
      return placement.spans_nodes() ? MakeReduceScatter(placement, std::move(plan))
                                     : MakeNodeReduce(placement, std::move(plan));
    case OpKind::kAllReduce:
      if (!placement.spans_nodes() && placement.size() > 1 && IsSmallAllReduce(plan)) {
        return MakeSmallAllReduce(std::move(plan));
      }
      return placement.spans_nodes() ? MakeAllReduce(placement, std::move(plan))
                                     : MakeNodeReduce(placement, std::move(plan));
    case OpKind::kAllToAll:
    case OpKind::kSendReceive:
      return MakeAllToAll(std::move(plan));
    case OpKind::kBroadcast:
      return placement.spans_nodes() ? MakeBroadcast(placement, std::move(plan))
                                     : MakeAllGather(placement, std::move(plan));
    case OpKind::kAllGather:
    case OpKind::kAllGatherShared:
    case OpKind::kAllGatherDelta:
    case OpKind::kBarrier:
    case OpKind::kSend:  // Messages have no operation: see MessageBoard.
    case OpKind::kReceive:
      break;
  }
  return MakeAllGather(placement, std::move(plan));
}

}  // namespace

CommEngine::Impl::Impl(Bootstrap& bootstrap, NodeHeap& heap, EngineOptions options, CreditRules credit_rules)
    : bootstrap_(bootstrap),
      heap_(heap),
      options_(std::move(options)),
      credit_rules_(credit_rules),
      scratch_(heap, "engine scratch"),
      recorder_(bootstrap.rank(), bootstrap.size(), options_.recorder_entries),
      trace_(bootstrap.runtime()),
      forming_(bootstrap.runtime()),
      reset_rounds_(bootstrap) {}

CommEngine::Impl::~Impl() {
  if (!shell_) return;
  shell_->Leave();  // First: peers that wait for this rank to submit more fail, and Drain ends.
  const absl::Time drain_deadline = missed_deadline_ ? bootstrap_.runtime().Now() : Deadline();
  if (const absl::Status drained = shell_->Drain(drain_deadline); !drained.ok()) Abort(drained);
  if (watchdog_) {
    watchdog_->DumpFailure();
    // The program would wait for the missing rank again when it destroys the bootstrap.
    if (const absl::Status failed = status(); absl::IsDeadlineExceeded(failed)) watchdog_->EndProcess(failed);
  }
  // Data that still arrives or leaves must not be in buffers that the caller gets back.
  const absl::Time deadline = bootstrap_.runtime().Now() + kMessagesTimeout;
  if (!status().ok()) Report(shell_->AwaitAbandonedTransfers(deadline));
  shell_->Leave();  // On lanes whose descriptor ring was full.
  shell_->FlushControlMessages(deadline);
  watchdog_.reset();
  shell_->Stop();
}

absl::Status CommEngine::Impl::Open() {
  WEFT_RETURN_IF_ERROR(CheckOptions(options_, bootstrap_.runtime()));
  WEFT_ASSIGN_OR_RETURN(timeout_, TimeoutOrDefault(options_.timeout));
  WEFT_ASSIGN_OR_RETURN(node_, OpenNodeLink(bootstrap_, heap_, timeout_));
  WEFT_ASSIGN_OR_RETURN(wire_, bootstrap_.OpenWire(timeout_));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<EngineCore> core, MakeCore(*wire_));
  // All ranks of a job have the same transport.
  lane_limit_ = NodeLink::kMaxLanes;
  if (bootstrap_.node_map().node_count() > 1)
    lane_limit_ = std::min(lane_limit_, TagLayout::Of(wire_->max_tag(), bootstrap_.node_map()).lanes);
  shell_.emplace(bootstrap_.runtime(), *node_, trace_, bootstrap_.rank());
  shell_->Start(std::move(core));
  if (options_.watchdog) {
    watchdog_.emplace(
        recorder_,
        Watchdog::Options{absl::ToInt64Nanoseconds(timeout_ + kWatchdogDelay), options_.dump_folder,
                          bootstrap_.rank(), bootstrap_.size()},
        [&runtime = bootstrap_.runtime()] { return runtime.NowNs(); }, [](int code) { std::_Exit(code); });
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EngineCore>> CommEngine::Impl::MakeCore(WireLink& wire) {
  const TagLayout tags = TagLayout::Of(wire.max_tag(), bootstrap_.node_map());
  auto core = std::make_unique<EngineCore>(
      EngineCore::Environment{bootstrap_.rank(), bootstrap_.node_map(), *node_, wire, tags, scratch_,
                              recorder_, trace_, counters_, options_, credit_rules_});
  const MutexLock lock(lanes_mutex_);
  for (size_t index = 0; index < lanes_.size(); ++index) {
    if (lanes_[index] == nullptr) continue;
    const Lane& lane = *lanes_[index];
    WEFT_RETURN_IF_ERROR(core->AddLane(static_cast<int>(index), lane.name, lane.placement, lane.purpose));
  }
  return core;
}

absl::Status CommEngine::Impl::CheckMember(const ProcessGroup& group) const {
  const bool member = group.group_rank >= 0 && group.group_rank < group.size() &&
                      group.ranks[static_cast<size_t>(group.group_rank)] == bootstrap_.rank();
  if (member) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", bootstrap_.rank(), " is not rank ",
                                                 group.group_rank, " of group ", group.name,
                                                 "; every rank adds the lane of its own group"));
}

CommEngine::Impl::Lane* CommEngine::Impl::Find(LaneId lane) const {
  const MutexLock lock(lanes_mutex_);
  const bool in_range = lane.index >= 0 && static_cast<size_t>(lane.index) < lanes_.size();
  return in_range ? lanes_[static_cast<size_t>(lane.index)].get() : nullptr;
}

const CommEngine::Impl::Lane& CommEngine::Impl::LaneOf(LaneId lane) const {
  const Lane* found = Find(lane);
  WEFT_CHECK(found != nullptr, "the engine has no such lane");
  return *found;
}

absl::StatusOr<std::unique_ptr<CommEngine::Impl::Lane>> CommEngine::Impl::MakeLane(const ProcessGroup& group,
                                                                                   LanePurpose purpose) {
  WEFT_RETURN_IF_ERROR(CheckMember(group));
  const uint64_t group_hash = Hash64(group.ranks.data(), group.ranks.size() * sizeof(int));
  return std::make_unique<Lane>(
      Lane{LaneName(group, purpose), purpose, MakePlacement(group, group_hash), group_hash});
}

GroupPlacement CommEngine::Impl::MakePlacement(const ProcessGroup& group, uint64_t group_hash) const {
  const auto make = [&] { return GroupPlacement::MakeTables(group.ranks, bootstrap_.node_map()); };
  Simulation* simulation = bootstrap_.runtime().simulation();
  if (simulation == nullptr) return {group, make()};
  return {group, std::static_pointer_cast<const GroupPlacement::Tables>(
                     simulation->SharedBetweenRanks(group_hash, make))};
}

absl::StatusOr<LaneId> CommEngine::Impl::Install(int index, std::unique_ptr<Lane> lane) {
  WEFT_RETURN_IF_ERROR(shell_->WithCore(
      [&](EngineCore& core) { return core.AddLane(index, lane->name, lane->placement, lane->purpose); }));
  recorder_.RecordLane(index, lane->name, lane->placement.group().ranks);
  trace_.SetLaneName(index, lane->name);
  const MutexLock lock(lanes_mutex_);
  if (static_cast<size_t>(index) >= lanes_.size()) lanes_.resize(static_cast<size_t>(index) + 1);
  lanes_[static_cast<size_t>(index)] = std::move(lane);
  return LaneId{index};
}

absl::StatusOr<LaneId> CommEngine::Impl::AddLane(const ProcessGroup& group, LanePurpose purpose) {
  const Turn::Hold turn(forming_);
  return AddLaneOfAll(group, purpose);
}

absl::StatusOr<LaneId> CommEngine::Impl::AddLaneOfAll(const ProcessGroup& group, LanePurpose purpose) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane, MakeLane(group, purpose));
  const int index = IndexOfLaneOfAll(lanes_of_all_);
  if (index >= lane_limit_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "lane ", lane->name, " of ", RankList(group.ranks), " is one too many: this engine has at most ",
        lanes_of_all_, " lanes that all ranks add; use one lane for several uses of a group, or GroupLane"));
  }
  WEFT_ASSIGN_OR_RETURN(const LaneId id, Install(index, std::move(lane)));
  ++lanes_of_all_;
  return id;
}

absl::StatusOr<LaneId> CommEngine::Impl::GroupLane(const ProcessGroup& group, LanePurpose purpose, int number,
                                                   const GroupExchange& exchange) {
  const Turn::Hold turn(forming_);
  const std::string name = LaneName(group, purpose);
  const LaneKey key{group.ranks, purpose, number};
  const auto found = group_lanes_.find(key);
  LaneProposal own;
  own.group_hash = Hash64(group.ranks.data(), group.ranks.size() * sizeof(int));
  own.purpose = purpose;
  own.number = number;
  own.existing = found == group_lanes_.end() ? -1 : found->second.index;
  own.limit = lane_limit_;
  own.is_free = FreeIndices();
  absl::StatusOr<std::unique_ptr<Lane>> lane = MakeLane(group, purpose);
  // Afterwards no member fails alone.
  own.status = lane.ok() ? shell_->WithCore([&](EngineCore& core) { return core.ReserveLane(group.size()); })
                         : lane.status();
  const absl::StatusOr<std::vector<std::string>> proposals = exchange(own.Serialize());
  if (!proposals.ok()) {
    return Annotate(proposals.status(),
                    absl::StrCat("lane ", name, " of ", RankList(group.ranks), ", agreement of its members"));
  }
  WEFT_ASSIGN_OR_RETURN(const LaneDecision decision, DecideLane(group, name, *proposals));
  if (!decision.is_new) return LaneId{decision.index};
  WEFT_ASSIGN_OR_RETURN(const LaneId id, Install(decision.index, *std::move(lane)));
  group_lanes_[key] = id;
  return id;
}

// The index of a lane is the same on all ranks, so they must decide alike whether to add one. Their own maps
// may differ: two partitions of the ranks can have some groups in common, whose ranks then have the lane, and
// not others. A lane is therefore reused only if all ranks have it at the same index.
absl::StatusOr<LaneId> CommEngine::Impl::SharedLane(const ProcessGroup& group, LanePurpose purpose,
                                                    int number) {
  const Turn::Hold turn(forming_);
  const LaneKey key{group.ranks, purpose, number};
  const auto found = shared_lanes_.find(key);
  const std::string own = absl::StrCat(found == shared_lanes_.end() ? LaneId{}.index : found->second.index);
  const absl::Status member = CheckMember(group);
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> indices,
                        ExchangeBlobs(bootstrap_, "index of a shared lane",
                                      member.ok() ? absl::StatusOr<std::string>(own) : member, timeout_));
  const bool same =
      std::all_of(indices.begin(), indices.end(), [&](const std::string& index) { return index == own; });
  if (same && found != shared_lanes_.end()) return found->second;
  const absl::StatusOr<LaneId> lane = AddLaneOfAll(group, purpose);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap_, lane.status(), timeout_));
  shared_lanes_[key] = *lane;
  return *lane;
}

std::vector<bool> CommEngine::Impl::FreeIndices() const {
  const MutexLock lock(lanes_mutex_);
  std::vector<bool> is_free;
  for (const std::unique_ptr<Lane>& lane : lanes_) is_free.push_back(lane == nullptr);
  return is_free;
}

absl::Status CommEngine::Impl::CheckLane(LaneId lane) const {
  if (Find(lane) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "lane ", lane.index, " is not a lane of this engine; use an id that it returned for a lane"));
}

bool CommEngine::Impl::IsSmallAllReduce(LaneId lane, int64_t count, DType dtype) const {
  return weft::IsSmallAllReduce(LaneOf(lane).placement, count, dtype);
}

bool CommEngine::Impl::IsMirrored() const {
  const Simulation* simulation = bootstrap_.runtime().simulation();
  return simulation != nullptr && simulation->options().mirror_nodes;
}

void CommEngine::Impl::MirrorNodes(const GroupPlacement& placement, Request& request) {
  if (!IsMirrored() || !placement.spans_nodes()) return;
  PartLayout& parts = request.plan.parts;
  if (parts.counts.size() != static_cast<size_t>(placement.size())) return;  // A small collective.
  const auto bytes_of = [&](const PartLayout& layout) {
    return std::accumulate(layout.counts.begin(), layout.counts.end(), int64_t{0}) *
           static_cast<int64_t>(SizeOf(request.plan.dtype));
  };
  PartLayout mirrored = MirrorParts(parts, placement);
  const int64_t bytes = bytes_of(parts);
  const int64_t excess = bytes_of(mirrored) - bytes;
  if (excess != 0 && request.plan.kind != OpKind::kAllReduce) {
    request.logical_bytes = bytes * (placement.size() - 1) / placement.size();
  }
  if (excess != 0 && placement.IndexInNode(placement.me()) == 0) {
    const int phases = request.plan.kind == OpKind::kAllReduce ? 2 : 1;
    const int64_t sent = phases * excess * (placement.node_count() - 1) / placement.node_count();
    shell_->WithCore([&](EngineCore& /*core*/) { counters_.wire_bytes -= sent; });
  }
  parts = std::move(mirrored);
}

std::shared_ptr<OperationRecord> CommEngine::Impl::Submit(Request request, const absl::Status& valid) {
  auto record = std::make_shared<OperationRecord>();
  const absl::Status checked = valid.ok() ? CheckLane(request.lane) : valid;
  record->descriptor.kind = request.plan.kind;
  record->descriptor.dtype = request.plan.dtype;
  record->label = std::move(request.options.label);
  if (!checked.ok()) {
    record->error = checked;
    record->state.store(OperationState::kFailed, std::memory_order_release);
    Abort(checked);
    return record;
  }
  Lane& lane = *Find(request.lane);
  MirrorNodes(lane.placement, request);
  record->lane = request.lane.index;
  record->lane_name = lane.name;
  record->priority = request.options.priority;
  record->logical_bytes = request.logical_bytes;
  record->after = std::move(request.after);
  record->gate = std::move(request.gate);
  Descriptor& descriptor = record->descriptor;
  descriptor.identity = request.options.identity;
  descriptor.counts_hash = request.counts_hash;
  descriptor.group_hash = lane.group_hash;
  descriptor.total_count = request.total_count;
  descriptor.generation = reset_rounds_.attempt();
  descriptor.any_dtype = request.any_dtype;
  descriptor.reduce = request.plan.reduce;
  descriptor.wire_compression = request.options.wire_compression;
  descriptor.scale = request.options.scale;
  request.plan.scale = request.options.scale;
  logical_bytes_[static_cast<size_t>(lane.purpose)].fetch_add(request.logical_bytes,
                                                              std::memory_order_relaxed);
  {
    const MutexLock lock(lanes_mutex_);
    descriptor.sequence = lane.next_sequence++;
    record->operation = MakeOperation(lane.placement, std::move(request.plan), IsMirrored());
    shell_->Queue(record);
  }
  shell_->Kick();
  return record;
}

std::shared_ptr<OperationRecord> CommEngine::Impl::SubmitMessage(OpKind kind, MessageRequest message,
                                                                 OpOptions options) {
  auto record = std::make_shared<OperationRecord>();
  record->descriptor.kind = kind;
  record->descriptor.dtype = DType::kU8;
  record->descriptor.identity = options.identity;
  record->descriptor.total_count = message.bytes;
  record->descriptor.generation = reset_rounds_.attempt();
  record->label = std::move(options.label);
  if (const absl::Status valid = CheckMessage(kind, message, options); !valid.ok()) {
    record->error = valid;
    record->state.store(OperationState::kFailed, std::memory_order_release);
    Abort(valid);
    return record;
  }
  record->lane = kMessageLane;
  record->lane_name = "messages";
  record->priority = options.priority;
  record->logical_bytes = message.bytes;
  record->message = message;
  {
    const MutexLock lock(lanes_mutex_);
    record->descriptor.sequence = next_message_++;
    shell_->Queue(record);
  }
  shell_->Kick();
  return record;
}

absl::Status CommEngine::Impl::CheckMessage(OpKind kind, const MessageRequest& message,
                                            const OpOptions& options) const {
  const auto invalid = [&](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(Name(kind)), ": ", text...));
  };
  const bool any_source = kind == OpKind::kReceive && message.peer == kAnySource;
  if (!any_source && (message.peer < 0 || message.peer >= bootstrap_.size())) {
    return invalid(message.peer, " is not a rank of the bootstrap, which has ranks 0 to ",
                   bootstrap_.size() - 1, "; a receive from every rank takes kAnySource");
  }
  if (message.bytes < 0) return invalid("a size of ", message.bytes, " bytes is negative");
  if (message.data == nullptr && message.bytes > 0)
    return invalid("null buffer of ", message.bytes, " bytes");
  if (options.gate != nullptr) return invalid("a message has no gate; submit it once the gate is released");
  if (options.wire_compression != WireCompression::kNone)
    return invalid("messages are not compressed; set wire_compression to kNone");
  return absl::OkStatus();
}

absl::Status CommEngine::Impl::Wait(const std::shared_ptr<OperationRecord>& record, EngineShell::Event event,
                                    std::optional<absl::Time> deadline) {
  if (record->lane < 0) return record->error;  // Failed at submission.
  const bool is_longer = deadline && *deadline > Deadline();
  const auto extension = is_longer ? ExtendWatchdog(Watchdog::Task::kWait, *deadline) : std::nullopt;
  absl::Status status = shell_->Wait(record, event, deadline.value_or(Deadline()),
                                     /*checks_heartbeats=*/!deadline.has_value());
  if (!deadline) missed_deadline_ = absl::IsDeadlineExceeded(status);
  return status;
}

void CommEngine::Impl::KeepAlive(OperationRecord& record, std::vector<std::shared_ptr<void>> memory) {
  shell_->WithCore([&](EngineCore& core) { core.KeepAlive(record, std::move(memory)); });
}

void CommEngine::Impl::Then(OperationRecord& record, CompletionCallback done) {
  shell_->Then(record, std::move(done));
}

void CommEngine::Impl::Abort(const absl::Status& cause) {
  shell_->WithCore([&](EngineCore& core) { core.Fail(cause); });
}

absl::Status CommEngine::Impl::ResetAfterError() {
  using Phase = ResetRounds::Phase;
  const absl::Time deadline = Deadline();
  const auto agree = [&](Phase phase) {
    return reset_rounds_.Agree(phase, deadline - bootstrap_.runtime().Now());
  };
  const auto extension = ExtendWatchdog(Watchdog::Task::kReset, deadline);
  Abort(absl::AbortedError("the engine is being reset"));
  shell_->AwaitRunningTasks();
  WEFT_RETURN_IF_ERROR(shell_->AwaitAbandonedTransfers(deadline));
  reset_rounds_.BeginAttempt();
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const bool quiet, agree(Phase::kQuiet));
    if (!quiet) continue;
    WEFT_ASSIGN_OR_RETURN(FreshCore fresh, MakeFreshCore(deadline));
    const absl::StatusOr<bool> committed = agree(Phase::kCommit);
    if (committed.ok() && !*committed) continue;
    Install(std::move(fresh));
    // Peers that have committed learn from the fresh link that this rank has not. See Note [Reset rounds].
    if (!committed.ok()) Abort(committed.status());
    return committed.status();
  }
}

std::optional<Watchdog::Extension> CommEngine::Impl::ExtendWatchdog(Watchdog::Task task,
                                                                    absl::Time deadline) {
  if (!watchdog_) return std::nullopt;
  const absl::Duration left = std::min(deadline - bootstrap_.runtime().Now() + kWatchdogDelay, kLongestTask);
  return watchdog_->Extend(task, bootstrap_.runtime().NowNs() + absl::ToInt64Nanoseconds(left));
}

absl::StatusOr<CommEngine::Impl::FreshCore> CommEngine::Impl::MakeFreshCore(absl::Time deadline) {
  FreshCore fresh;
  node_->Reset();
  WEFT_ASSIGN_OR_RETURN(fresh.wire, bootstrap_.OpenWire(deadline - bootstrap_.runtime().Now()));
  {
    const MutexLock lock(lanes_mutex_);
    for (const std::unique_ptr<Lane>& lane : lanes_) {
      if (lane != nullptr) lane->next_sequence = 1;
    }
  }
  WEFT_ASSIGN_OR_RETURN(fresh.core, MakeCore(*fresh.wire));
  return fresh;
}

void CommEngine::Impl::Install(FreshCore fresh) {
  shell_->Replace(std::move(fresh.core));
  recorder_.RecordFailure(absl::OkStatus());
  missed_deadline_ = false;
  wire_ = std::move(fresh.wire);  // Last: the failed core uses the old link until it is replaced.
}

EngineCounters CommEngine::Impl::counters() {
  EngineCounters counters = shell_->WithCore([](EngineCore& core) { return core.counters(); });
  const auto logical = [this](LanePurpose purpose) {
    return logical_bytes_[static_cast<size_t>(purpose)].load(std::memory_order_relaxed);
  };
  counters.all_gather_bytes = logical(LanePurpose::kAllGather);
  counters.reduce_scatter_bytes = logical(LanePurpose::kReduceScatter);
  counters.all_reduce_bytes = logical(LanePurpose::kAllReduce);
  counters.context_bytes = logical(LanePurpose::kContext);
  counters.control_bytes = logical(LanePurpose::kControl);
  counters.optimizer_bytes = logical(LanePurpose::kOptimizer);
  counters.wait_ns = shell_->wait_ns();
  return counters;
}

absl::Status CommEngine::Impl::status() {
  return shell_->WithCore([](EngineCore& core) { return core.status(); });
}

}  // namespace weft
