#include "weft/comm/comm_engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/comm/base/part_shape.h"
#include "src/comm/engine/argument_checks.h"
#include "src/comm/engine/engine_impl.h"
#include "src/comm/phases/collective_plan.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"

namespace weft {
namespace {

PartLayout Parts(absl::Span<const int64_t> counts, int64_t total_count, int size) {
  return counts.empty() ? PartLayout::Equal(total_count / size, size) : PartLayout::FromCounts(counts);
}

uint64_t HashOf(const PartLayout& parts) {
  if (parts.ranges != nullptr) return parts.ranges->hash();
  return Hash64(parts.counts.data(), parts.counts.size() * sizeof(int64_t));
}

absl::Status NoSuchLane(LaneId lane) {
  return absl::InvalidArgumentError(absl::StrCat(
      "lane ", lane.index, " is not a lane of this engine; use an id that it returned for a lane"));
}

const std::byte* Bytes(const void* memory) { return static_cast<const std::byte*>(memory); }
std::byte* Bytes(void* memory) { return static_cast<std::byte*>(memory); }

}  // namespace

CommEngine::CommEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CommEngine::~CommEngine() = default;

absl::StatusOr<std::unique_ptr<CommEngine>> CommEngine::Create(Bootstrap& bootstrap, NodeHeap& heap,
                                                               const EngineOptions& options) {
  auto impl = std::make_unique<Impl>(bootstrap, heap, options);
  WEFT_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<CommEngine>(new CommEngine(std::move(impl)));
}

absl::StatusOr<LaneId> CommEngine::AddLane(const ProcessGroup& group, LanePurpose purpose) {
  return impl_->AddLane(group, purpose);
}
absl::StatusOr<LaneId> CommEngine::SharedLane(const ProcessGroup& group, LanePurpose purpose, int number) {
  return impl_->SharedLane(group, purpose, number);
}
absl::StatusOr<LaneId> CommEngine::GroupLane(const ProcessGroup& group, LanePurpose purpose, int number,
                                             const GroupExchange& exchange) {
  return impl_->GroupLane(group, purpose, number, exchange);
}
const ProcessGroup& CommEngine::group(LaneId lane) const { return impl_->group(lane); }

// Fills the fields of a request that all collectives share. If they are valid, `build` checks the other
// arguments and fills the remaining fields. Then submits the request, or fails it if an argument is invalid.
template <typename Build>
Work CommEngine::SubmitChecked(LaneId lane, OpOptions options, const Work* after, const Build& build) {
  Impl::Request request;
  request.lane = impl_->Find(lane);
  absl::Status valid = request.lane != nullptr ? absl::OkStatus() : NoSuchLane(lane);
  const auto follow = [&](const Work* earlier, std::string_view role,
                          std::shared_ptr<OperationRecord>& record) {
    if (earlier == nullptr || !earlier->valid()) return;
    record = earlier->record_;
    if (valid.ok()) valid = CheckPredecessor(*record, earlier->engine_ == this, role);
  };
  follow(after, "after", request.after);
  follow(std::exchange(options.gate, nullptr), "gate", request.gate);
  request.options = std::move(options);
  if (valid.ok()) valid = build(request.lane->placement.group(), request);
  return Work(this, impl_->Submit(std::move(request), valid));
}

Work CommEngine::SubmitGather(LaneId lane, OpKind kind, const GatherBuffers& buffers, DType dtype,
                              int64_t total_count, absl::Span<const int64_t> counts, OpOptions options,
                              const Work* after) {
  return SubmitChecked(
      lane, std::move(options), after, [&](const ProcessGroup& group, Impl::Request& request) {
        WEFT_RETURN_IF_ERROR(CheckCounts(counts, total_count, dtype, group.size(), Name(kind)));
        WEFT_RETURN_IF_ERROR(CheckBuffer({"output", buffers.output, total_count}, dtype, kind));
        if (kind != OpKind::kAllGather && !request.lane->placement.local_peers().empty()) {
          WEFT_RETURN_IF_ERROR(
              CheckInNodeMemory(heap(), {"output", buffers.output, total_count}, dtype, kind));
        }
        request.plan.SetContiguous(kind, dtype, ReduceOp::kSum, Bytes(buffers.input), Bytes(buffers.output),
                                   Parts(counts, total_count, group.size()));
        const PartLayout& parts = request.plan.parts;
        const auto me = static_cast<size_t>(group.group_rank);
        if (kind == OpKind::kAllGatherDelta) {
          WEFT_RETURN_IF_ERROR(CheckBuffer({"base", buffers.base, parts.counts[me]}, dtype, kind));
          request.plan.input = Bytes(buffers.output) + BytesOf(parts.offsets[me], dtype);
          request.plan.base = Bytes(buffers.base);
        } else {
          WEFT_RETURN_IF_ERROR(CheckBuffer({"input", buffers.input, parts.counts[me]}, dtype, kind));
        }
        request.total_count = total_count;
        request.counts_hash = HashOf(parts);
        request.logical_bytes = BytesOf(total_count - parts.counts[me], dtype);
        return absl::OkStatus();
      });
}

Work CommEngine::AllGather(LaneId lane, const void* input, void* output, DType dtype, int64_t total_count,
                           absl::Span<const int64_t> counts, OpOptions options, const Work* after) {
  return SubmitGather(lane, OpKind::kAllGather, {input, output, nullptr}, dtype, total_count, counts,
                      std::move(options), after);
}

Work CommEngine::AllGatherShared(LaneId lane, const void* input, void* output, DType dtype,
                                 int64_t total_count, absl::Span<const int64_t> counts, OpOptions options,
                                 const Work* after) {
  return SubmitGather(lane, OpKind::kAllGatherShared, {input, output, nullptr}, dtype, total_count, counts,
                      std::move(options), after);
}

Work CommEngine::AllGatherDelta(LaneId lane, void* base, void* output, int64_t total_count,
                                absl::Span<const int64_t> counts, OpOptions options, const Work* after) {
  return SubmitGather(lane, OpKind::kAllGatherDelta, {nullptr, output, base}, DType::kF32, total_count,
                      counts, std::move(options), after);
}

Work CommEngine::ReduceScatter(LaneId lane, const void* input, void* output, DType dtype, int64_t total_count,
                               ReduceOp op, absl::Span<const int64_t> counts, OpOptions options,
                               const Work* after) {
  return SubmitChecked(
      lane, std::move(options), after, [&](const ProcessGroup& group, Impl::Request& request) {
        WEFT_RETURN_IF_ERROR(CheckCounts(counts, total_count, dtype, group.size(), "reduce_scatter"));
        WEFT_RETURN_IF_ERROR(CheckReduce(op, dtype, request.options.scale, "reduce_scatter"));
        WEFT_RETURN_IF_ERROR(CheckBuffer({"input", input, total_count}, dtype, OpKind::kReduceScatter));
        request.plan.SetContiguous(OpKind::kReduceScatter, dtype, op, Bytes(input), Bytes(output),
                                   Parts(counts, total_count, group.size()));
        const PartLayout& parts = request.plan.parts;
        request.total_count = total_count;
        request.counts_hash = HashOf(parts);
        const int64_t own = parts.counts[static_cast<size_t>(group.group_rank)];
        WEFT_RETURN_IF_ERROR(CheckBuffer({"output", output, own}, dtype, OpKind::kReduceScatter));
        request.logical_bytes = BytesOf(own * (group.size() - 1), dtype);
        return absl::OkStatus();
      });
}

Work CommEngine::SubmitGather(LaneId lane, OpKind kind, const GatherBuffers& buffers, DType dtype,
                              std::shared_ptr<const PartRanges> parts, OpOptions options, const Work* after) {
  return SubmitChecked(
      lane, std::move(options), after, [&](const ProcessGroup& group, Impl::Request& request) {
        WEFT_RETURN_IF_ERROR(CheckRanges(parts.get(), group, dtype, kind));
        const int64_t own = parts->counts()[static_cast<size_t>(group.group_rank)];
        WEFT_RETURN_IF_ERROR(CheckBuffer({"output", buffers.output, parts->extent()}, dtype, kind));
        if (kind == OpKind::kAllGather)
          WEFT_RETURN_IF_ERROR(CheckBuffer({"input", buffers.input, own}, dtype, kind));
        if (kind == OpKind::kAllGatherDelta)
          WEFT_RETURN_IF_ERROR(CheckBuffer({"base", buffers.base, own}, dtype, kind));
        if (!request.lane->placement.local_peers().empty()) {
          WEFT_RETURN_IF_ERROR(
              CheckInNodeMemory(heap(), {"output", buffers.output, parts->extent()}, dtype, kind));
          const bool is_read = kind != OpKind::kAllGatherShared && buffers.input != buffers.output;
          if (is_read) {
            WEFT_RETURN_IF_ERROR(CheckInNodeMemory(heap(), {"input", buffers.input, own}, dtype, kind));
          }
        }
        request.total_count = parts->total();
        request.logical_bytes = BytesOf(parts->total() - own, dtype);
        request.plan.SetContiguous(kind, dtype, ReduceOp::kSum, Bytes(buffers.input), Bytes(buffers.output),
                                   PartLayout::FromRanges(std::move(parts)));
        request.plan.base = Bytes(buffers.base);
        request.counts_hash = HashOf(request.plan.parts);
        return absl::OkStatus();
      });
}

Work CommEngine::AllGather(LaneId lane, const void* input, void* output, DType dtype,
                           std::shared_ptr<const PartRanges> parts, OpOptions options, const Work* after) {
  return SubmitGather(lane, OpKind::kAllGather, {input, output, nullptr}, dtype, std::move(parts),
                      std::move(options), after);
}

Work CommEngine::AllGatherShared(LaneId lane, const void* input, void* output, DType dtype,
                                 std::shared_ptr<const PartRanges> parts, OpOptions options,
                                 const Work* after) {
  return SubmitGather(lane, OpKind::kAllGatherShared, {input, output, nullptr}, dtype, std::move(parts),
                      std::move(options), after);
}

Work CommEngine::AllGatherDelta(LaneId lane, void* base, void* output,
                                std::shared_ptr<const PartRanges> parts, OpOptions options,
                                const Work* after) {
  return SubmitGather(lane, OpKind::kAllGatherDelta, {output, output, base}, DType::kF32, std::move(parts),
                      std::move(options), after);
}

template <typename Input>
Work CommEngine::SubmitReduceScatter(LaneId lane, const Input& input, void* output, DType dtype, ReduceOp op,
                                     std::shared_ptr<const PartRanges> parts, OpOptions options,
                                     const Work* after) {
  return SubmitChecked(
      lane, std::move(options), after, [&](const ProcessGroup& group, Impl::Request& request) {
        constexpr OpKind kKind = OpKind::kReduceScatter;
        WEFT_RETURN_IF_ERROR(CheckRanges(parts.get(), group, dtype, kKind));
        WEFT_RETURN_IF_ERROR(CheckReduce(op, dtype, request.options.scale, "reduce_scatter"));
        const PartRanges& ranges = *parts;
        const int64_t own = ranges.counts()[static_cast<size_t>(group.group_rank)];
        WEFT_RETURN_IF_ERROR(CheckBuffer({"output", output, own}, dtype, kKind));
        request.total_count = ranges.total();
        request.logical_bytes = BytesOf(own * (group.size() - 1), dtype);
        request.plan.SetContiguous(kKind, dtype, op, nullptr, Bytes(output),
                                   PartLayout::FromRanges(std::move(parts)));
        request.counts_hash = HashOf(request.plan.parts);
        return input(ranges, request);
      });
}

Work CommEngine::ReduceScatter(LaneId lane, const void* input, void* output, DType dtype, ReduceOp op,
                               std::shared_ptr<const PartRanges> parts, OpOptions options,
                               const Work* after) {
  const auto block = [&](const PartRanges& ranges, Impl::Request& request) -> absl::Status {
    WEFT_RETURN_IF_ERROR(CheckBuffer({"input", input, ranges.extent()}, dtype, OpKind::kReduceScatter));
    request.plan.input = Bytes(input);
    if (request.lane->placement.local_peers().empty()) return absl::OkStatus();
    return CheckInNodeMemory(heap(), {"input", input, ranges.extent()}, dtype, OpKind::kReduceScatter);
  };
  return SubmitReduceScatter(lane, block, output, dtype, op, std::move(parts), std::move(options), after);
}

Work CommEngine::ReduceScatter(LaneId lane, absl::Span<const SourceView> input, void* output, DType dtype,
                               ReduceOp op, std::shared_ptr<const PartRanges> parts, OpOptions options,
                               const Work* after) {
  const auto views = [&](const PartRanges& ranges, Impl::Request& request) -> absl::Status {
    WEFT_RETURN_IF_ERROR(CheckViews(input, ranges, dtype));
    request.plan.views.assign(input.begin(), input.end());
    for (const SourceView& view : input) {
      request.counts_hash = Hash64(&view.range, sizeof(view.range), request.counts_hash);
    }
    return absl::OkStatus();
  };
  return SubmitReduceScatter(lane, views, output, dtype, op, std::move(parts), std::move(options), after);
}

Work CommEngine::AllReduce(LaneId lane, const void* input, void* output, DType dtype, int64_t count,
                           ReduceOp op, OpOptions options, const Work* after) {
  return SubmitChecked(
      lane, std::move(options), after, [&](const ProcessGroup& group, Impl::Request& request) {
        WEFT_RETURN_IF_ERROR(CheckTotal(count, dtype, "all_reduce"));
        WEFT_RETURN_IF_ERROR(CheckReduce(op, dtype, request.options.scale, "all_reduce"));
        WEFT_RETURN_IF_ERROR(CheckBuffer({"input", input, count}, dtype, OpKind::kAllReduce));
        WEFT_RETURN_IF_ERROR(CheckBuffer({"output", output, count}, dtype, OpKind::kAllReduce));
        request.plan.SetContiguous(OpKind::kAllReduce, dtype, op, Bytes(input), Bytes(output),
                                   PartLayout::FromCounts(impl_->FormAllReduce(dtype, count, request)));
        request.total_count = count;
        const int64_t bytes = BytesOf(count, dtype);
        request.logical_bytes = 2 * bytes * (group.size() - 1) / group.size();
        return absl::OkStatus();
      });
}

template <typename Parts>
Work CommEngine::SubmitExchange(LaneId lane, OpKind kind, DType dtype, OpOptions options, const Work* after,
                                const Parts& parts) {
  return SubmitChecked(
      lane, std::move(options), after, [&](const ProcessGroup& group, Impl::Request& request) {
        std::vector<TensorView> sends;
        std::vector<TensorView> receives;
        WEFT_RETURN_IF_ERROR(parts(group, sends, receives));
        // The dtype of a send-receive is that of its parts.
        request.any_dtype = kind == OpKind::kSendReceive &&
                            std::all_of(sends.begin(), sends.end(), IsEmptyPart) &&
                            std::all_of(receives.begin(), receives.end(), IsEmptyPart);
        WEFT_ASSIGN_OR_RETURN(request.plan,
                              PlanExchange(group, kind, std::move(sends), std::move(receives), dtype));
        request.total_count = 0;  // Differs between ranks.
        request.logical_bytes = BytesFromPeers(group, request.plan);
        return absl::OkStatus();
      });
}

Work CommEngine::AllToAll(LaneId lane, absl::Span<const TensorView> sends,
                          absl::Span<const TensorView> receives, DType dtype, OpOptions options,
                          const Work* after) {
  return SubmitExchange(
      lane, OpKind::kAllToAll, dtype, std::move(options), after,
      [&](const ProcessGroup& /*group*/, std::vector<TensorView>& to, std::vector<TensorView>& from) {
        to.assign(sends.begin(), sends.end());
        from.assign(receives.begin(), receives.end());
        return absl::OkStatus();
      });
}

Work CommEngine::AllToAll(LaneId lane, const void* input, absl::Span<const int64_t> send_counts, void* output,
                          absl::Span<const int64_t> receive_counts, DType dtype, OpOptions options,
                          const Work* after) {
  return SubmitExchange(
      lane, OpKind::kAllToAll, dtype, std::move(options), after,
      [&](const ProcessGroup& group, std::vector<TensorView>& to, std::vector<TensorView>& from) {
        if (send_counts.empty() || receive_counts.empty()) {
          return absl::InvalidArgumentError("all_to_all: send and receive counts must both be given");
        }
        const auto check = [&](absl::Span<const int64_t> counts, std::string_view what) -> absl::Status {
          for (const int64_t count : counts) WEFT_RETURN_IF_ERROR(CheckTotal(count, dtype, what));
          const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
          return CheckCounts(counts, total, dtype, group.size(), what);
        };
        WEFT_RETURN_IF_ERROR(check(send_counts, "all_to_all, send"));
        WEFT_RETURN_IF_ERROR(check(receive_counts, "all_to_all, receive"));
        // TensorView has no const form. Sends are only read.
        to = ContiguousParts(const_cast<void*>(input), dtype, {send_counts.begin(), send_counts.end()});
        from = ContiguousParts(output, dtype, {receive_counts.begin(), receive_counts.end()});
        return absl::OkStatus();
      });
}

Work CommEngine::SendReceive(LaneId lane, const TensorView& send, int to, const TensorView& receive, int from,
                             OpOptions options, const Work* after) {
  const DType dtype = IsEmptyPart(send) ? receive.dtype : send.dtype;
  return SubmitExchange(
      lane, OpKind::kSendReceive, dtype, std::move(options), after,
      [&](const ProcessGroup& group, std::vector<TensorView>& sends, std::vector<TensorView>& receives) {
        for (const int rank : {to, from}) {
          if (rank >= 0 && rank < group.size()) continue;
          return absl::InvalidArgumentError(absl::StrCat("send_receive: ", rank, " is not a rank of group ",
                                                         group.name, " of size ", group.size()));
        }
        sends.resize(static_cast<size_t>(group.size()));
        receives.resize(static_cast<size_t>(group.size()));
        sends[static_cast<size_t>(to)] = send;
        receives[static_cast<size_t>(from)] = receive;
        return absl::OkStatus();
      });
}

Work CommEngine::Broadcast(LaneId lane, void* buffer, DType dtype, int64_t count, int root, OpOptions options,
                           const Work* after) {
  return SubmitChecked(
      lane, std::move(options), after, [&](const ProcessGroup& group, Impl::Request& request) {
        WEFT_RETURN_IF_ERROR(CheckTotal(count, dtype, "broadcast"));
        if (root < 0 || root >= group.size()) {
          return absl::InvalidArgumentError(absl::StrCat("broadcast: root ", root, " is not a rank of group ",
                                                         group.name, " of size ", group.size()));
        }
        if (HasMirroredNodes(bootstrap())) {
          return absl::InvalidArgumentError(
              "broadcast: its traffic differs between nodes, which mirrored nodes cannot simulate; simulate "
              "all");
        }
        WEFT_RETURN_IF_ERROR(CheckBuffer({"buffer", buffer, count}, dtype, OpKind::kBroadcast));
        std::vector<int64_t> counts(static_cast<size_t>(group.size()), 0);
        counts[static_cast<size_t>(root)] = count;
        request.plan.SetContiguous(OpKind::kBroadcast, dtype, ReduceOp::kSum, Bytes(buffer), Bytes(buffer),
                                   PartLayout::FromCounts(counts));
        request.plan.root = root;
        request.total_count = count;
        request.logical_bytes = group.group_rank == root ? 0 : BytesOf(count, dtype);
        return absl::OkStatus();
      });
}

Work CommEngine::Barrier(LaneId lane, OpOptions options, const Work* after) {
  return SubmitChecked(
      lane, std::move(options), after, [&](const ProcessGroup& group, Impl::Request& request) {
        request.plan.SetContiguous(OpKind::kBarrier, DType::kI32, ReduceOp::kSum, nullptr, nullptr, {});
        request.total_count = group.size();
        return absl::OkStatus();
      });
}

Work CommEngine::Send(const MessageAddress& to, const void* data, DType dtype, int64_t count,
                      OpOptions options) {
  // A message has no const form. The data of a send is only read.
  return Work(this, impl_->SubmitMessage(OpKind::kSend, to, const_cast<std::byte*>(Bytes(data)), dtype, count,
                                         std::move(options)));
}

Work CommEngine::Receive(const MessageAddress& from, void* data, DType dtype, int64_t count,
                         OpOptions options) {
  return Work(this,
              impl_->SubmitMessage(OpKind::kReceive, from, Bytes(data), dtype, count, std::move(options)));
}

absl::Status CommEngine::status() const { return impl_->status(); }
void CommEngine::Abort(const absl::Status& cause) { impl_->Abort(cause); }
absl::Status CommEngine::ResetAfterError() { return impl_->ResetAfterError(); }
EngineCounters CommEngine::counters() const { return impl_->counters(); }
size_t CommEngine::scratch_peak_bytes() const { return impl_->scratch_peak_bytes(); }
std::string CommEngine::RecorderJson() const { return impl_->RecorderJson(); }
void CommEngine::SetPhase(std::string phase) { impl_->SetPhase(std::move(phase)); }
void CommEngine::StartTrace() { impl_->StartTrace(); }
EngineTrace CommEngine::StopTrace() { return impl_->StopTrace(); }
Bootstrap& CommEngine::bootstrap() const { return impl_->bootstrap(); }
const ShareDomains& CommEngine::share_domains() const { return impl_->share_domains(); }
NodeHeap& CommEngine::heap() const { return impl_->heap(); }
const EngineOptions& CommEngine::options() const { return impl_->options(); }
absl::Duration CommEngine::timeout() const { return impl_->timeout(); }

}  // namespace weft
