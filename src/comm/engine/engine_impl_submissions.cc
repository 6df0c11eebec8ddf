// Submissions: requests become records and operations.
#include <algorithm>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/comm/base/buffer_limits.h"
#include "src/comm/engine/argument_checks.h"
#include "src/comm/engine/engine_impl.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"

namespace weft {
namespace {

// `form`: that of an all-reduce. `elements`: those of all parts. Those of a plan for mirrored nodes are the
// parts of one node.
std::unique_ptr<Operation> MakeOperation(const GroupPlacement& placement, CollectivePlan&& plan,
                                         AllReduceForm form, int64_t elements, const EngineOptions& options,
                                         bool mirrored) {
  if (plan.kind == OpKind::kBarrier || form == AllReduceForm::kTree)
    return MakeTreeCollective(placement, std::move(plan), mirrored);
  if (form == AllReduceForm::kRelayed) return MakeRelayedAllReduce(placement, std::move(plan), mirrored);
  if (IsSmallOnNode(placement, plan, options)) return MakeSmallNodeCollective(std::move(plan));
  if (IsRelayed(placement, plan, elements, options.relaying)) {
    return plan.kind == OpKind::kReduceScatter
               ? MakeRelayedReduceScatter(placement, std::move(plan), mirrored)
               : MakeRelayedGather(placement, std::move(plan), mirrored);
  }
  switch (plan.kind) {
    case OpKind::kReduceScatter:
      return placement.spans_nodes() ? MakeReduceScatter(placement, std::move(plan))
                                     : MakeNodeReduce(placement, std::move(plan));
    case OpKind::kAllReduce:
      return placement.spans_nodes() ? MakeAllReduce(placement, std::move(plan))
                                     : MakeNodeReduce(placement, std::move(plan));
    case OpKind::kAllToAll:
    case OpKind::kSendReceive:
      return MakeAllToAll(placement, std::move(plan));
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

std::vector<int64_t> CommEngine::Impl::FormAllReduce(DType dtype, int64_t count, Request& request) const {
  const GroupPlacement& placement = request.lane->placement;
  request.form = FormOfAllReduce(placement, dtype, count, options_.relaying);
  if (request.form == AllReduceForm::kTree) return {count};
  // Mirrored nodes have parts of one size.
  if (request.form == AllReduceForm::kRelayed && !HasMirroredNodes(bootstrap_))
    return RelayedAllReduceCounts(placement, dtype, count);
  return AllReduceCounts(count, placement.size(), dtype);
}

void CommEngine::Impl::MirrorNodes(const GroupPlacement& placement, Request& request) {
  if (!HasMirroredNodes(bootstrap_) || !placement.spans_nodes()) return;
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

std::shared_ptr<OperationRecord> CommEngine::Impl::Submit(Request&& request, const absl::Status& valid) {
  auto record = std::make_shared<OperationRecord>();
  record->descriptor.kind = request.plan.kind;
  record->descriptor.dtype = request.plan.dtype;
  record->label = std::move(request.options.label);
  if (!valid.ok()) {
    FailInvalid(*record, valid);
    return record;
  }
  const Lane& lane = *request.lane;
  MirrorNodes(lane.placement, request);
  record->lane = lane.index;
  record->lane_name = lane.name;
  record->priority = request.options.priority;
  record->logical_bytes = request.logical_bytes;
  record->after = std::move(request.after);
  record->gate = std::move(request.gate);
  Descriptor& descriptor = record->descriptor;
  descriptor.identity = request.options.identity;
  descriptor.counts_hash = request.counts_hash;
  descriptor.group_hash = lane.group_hash;
  if (descriptor.kind == OpKind::kAllGatherShared || descriptor.kind == OpKind::kReduceScatter) {
    descriptor.domains_hash = lane.placement.domains_hash();
  }
  descriptor.total_count = request.total_count;
  descriptor.generation = reset_rounds_.attempt();
  descriptor.elements = request.options.elements;
  descriptor.any_dtype = request.any_dtype;
  descriptor.root = request.plan.root;
  descriptor.reduce = request.plan.reduce;
  descriptor.wire_compression = request.options.wire_compression;
  descriptor.scale = request.options.scale;
  request.plan.scale = request.options.scale;
  logical_bytes_[static_cast<size_t>(lane.purpose)].fetch_add(request.logical_bytes,
                                                              std::memory_order_relaxed);
  record->operation = MakeOperation(lane.placement, std::move(request.plan), request.form,
                                    descriptor.total_count, options_, HasMirroredNodes(bootstrap_));
  QueueNext(record);
  return record;
}

void CommEngine::Impl::FailInvalid(OperationRecord& record, const absl::Status& error) {
  record.error = error;
  record.state.store(OperationState::kFailed, std::memory_order_release);
  Abort(error);
}

void CommEngine::Impl::QueueNext(const std::shared_ptr<OperationRecord>& record) {
  int64_t queued_ns = 0;
  {
    const MutexLock lock(lanes_mutex_);
    uint64_t& next =
        record->message ? next_message_ : lanes_[static_cast<size_t>(record->lane)]->next_sequence;
    record->descriptor.sequence = next++;
    queued_ns = shell_->Queue(record);
  }
  shell_->Kick(queued_ns);
}

std::shared_ptr<OperationRecord> CommEngine::Impl::SubmitMessage(OpKind kind, const MessageAddress& address,
                                                                 std::byte* data, DType dtype, int64_t count,
                                                                 OpOptions options) {
  auto record = std::make_shared<OperationRecord>();
  record->descriptor.kind = kind;
  record->descriptor.dtype = dtype;
  record->descriptor.elements = options.elements;
  record->descriptor.identity = options.identity;
  record->descriptor.total_count = count;
  record->descriptor.generation = reset_rounds_.attempt();
  record->label = std::move(options.label);
  // CheckMessage refuses larger ones.
  const int64_t bytes = BytesOf(std::min(count, kMaxBufferBytes), dtype);
  record->message = MessageRequest{address.peer, address.tag, address.channel, data, bytes};
  if (const absl::Status valid = CheckMessage(*record, options); !valid.ok()) {
    FailInvalid(*record, valid);
    return record;
  }
  record->lane = kMessageLane;
  record->lane_name = "messages";
  record->priority = options.priority;
  record->logical_bytes = bytes;
  QueueNext(record);
  return record;
}

absl::Status CommEngine::Impl::CheckMessage(const OperationRecord& record, const OpOptions& options) const {
  const OpKind kind = record.descriptor.kind;
  const MessageRequest& message = *record.message;
  const auto invalid = [&](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(Name(kind)), ": ", text...));
  };
  const bool any_source = kind == OpKind::kReceive && message.peer == kAnySource;
  if (!any_source && (message.peer < 0 || message.peer >= bootstrap_.size())) {
    return invalid(message.peer, " is not a rank of the bootstrap, which has ranks 0 to ",
                   bootstrap_.size() - 1, "; a receive from every rank takes kAnySource");
  }
  WEFT_RETURN_IF_ERROR(CheckTotal(record.descriptor.total_count, record.descriptor.dtype, Name(kind)));
  WEFT_RETURN_IF_ERROR(
      CheckBuffer({"buffer", message.data, record.descriptor.total_count}, record.descriptor.dtype, kind));
  if (options.gate != nullptr) return invalid("a message has no gate; submit it once the gate is released");
  if (options.wire_compression != WireCompression::kNone)
    return invalid("messages are not compressed; set wire_compression to kNone");
  return absl::OkStatus();
}

}  // namespace weft
