#include "sharding/pipeline/pipeline_lanes.h"

#include <cstring>
#include <numeric>
#include <utility>

#include <absl/algorithm/container.h>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// The `size` consecutive ranks of the shard group that include this rank.
absl::StatusOr<ProcessGroup> RegatherGroup(const ProcessGroup& shard_group, int size) {
  if (size < 2 || shard_group.size() % size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("reshard_after_forward_size is ", size,
                                                   ": it must be more than 1, and divide the ",
                                                   shard_group.size(), " ranks of the shard group"));
  }
  const int place = shard_group.group_rank % size;
  const auto first = shard_group.ranks.begin() + (shard_group.group_rank - place);
  return ProcessGroup{"regather", {first, first + size}, place};
}

absl::Status PartsNotEndToEnd(std::string_view collective, const std::string& group) {
  return absl::FailedPreconditionError(absl::StrCat(
      "parameter group '", group, "' has a custom ", ToAbsl(collective),
      ", but its layout kRows has parts in ranges of the image instead of end to end: use kContiguous or "
      "kPerParameter, or the engine's ",
      ToAbsl(collective)));
}

}  // namespace

absl::StatusOr<PipelineLanes> PipelineLanes::Create(PipelineState& state, PipelineMemory& memory,
                                                    ProcessGroup shard_group,
                                                    std::vector<ProcessGroup> replicate_groups,
                                                    const Options& options) {
  PipelineLanes lanes(state, std::move(shard_group), std::move(replicate_groups), options);
  for (const int size : options.regather_sizes) {
    WEFT_ASSIGN_OR_RETURN(ProcessGroup group, RegatherGroup(lanes.shard_group_, size));
    lanes.regathers_.emplace(size, RegatherLanes{std::move(group)});
  }
  WEFT_RETURN_IF_ERROR(lanes.AddLanes());
  // After the lanes: ranks that run out of memory here have added as many as their peers.
  WEFT_ASSIGN_OR_RETURN(lanes.scalars_, memory.AcquireShard(kScalarBytes));
  return lanes;
}

PipelineLanes::PipelineLanes(PipelineState& state, ProcessGroup shard_group,
                             std::vector<ProcessGroup> replicate_groups, const Options& options)
    : state_(state),
      shard_group_(std::move(shard_group)),
      replicate_groups_(std::move(replicate_groups)),
      options_(options) {}

absl::Status PipelineLanes::AddLanes() {
  CommEngine& engine = state_.engine();
  WEFT_ASSIGN_OR_RETURN(all_gather_lanes_,
                        LaneRoundRobin::Add(engine, shard_group_, LanePurpose::kAllGather));
  WEFT_ASSIGN_OR_RETURN(reduce_scatter_lanes_,
                        LaneRoundRobin::Add(engine, shard_group_, LanePurpose::kReduceScatter));
  WEFT_ASSIGN_OR_RETURN(control_lane_, engine.SharedLane(shard_group_, LanePurpose::kControl));
  for (auto& [size, regather] : regathers_) {
    WEFT_ASSIGN_OR_RETURN(regather.lanes,
                          LaneRoundRobin::Add(engine, regather.group, LanePurpose::kAllGather));
  }
  for (const ProcessGroup& group : replicate_groups_) {
    const bool scatters = options_.shard_optimizer_over_replicas;
    WEFT_ASSIGN_OR_RETURN(
        replicate_lanes_.emplace_back(),
        LaneRoundRobin::Add(engine, group, scatters ? LanePurpose::kReduceScatter : LanePurpose::kAllReduce));
    if (!scatters) continue;
    WEFT_ASSIGN_OR_RETURN(update_lanes_.emplace_back(),
                          LaneRoundRobin::Add(engine, group, LanePurpose::kAllGather));
  }
  return absl::OkStatus();
}

void PipelineLanes::Restart() {
  for (LaneRoundRobin* lanes : {&all_gather_lanes_, &reduce_scatter_lanes_}) lanes->Restart();
  for (auto& [size, regather] : regathers_) regather.lanes.Restart();
  for (LaneRoundRobin& lanes : replicate_lanes_) lanes.Restart();
  for (LaneRoundRobin& lanes : update_lanes_) lanes.Restart();
  submissions_ = 0;  // Ranks may have failed after different submissions.
}

OpOptions PipelineLanes::ControlOptions(const std::string& label, Priority priority) {
  return {priority, Hash64(label, ++submissions_), label};
}

OpOptions PipelineLanes::DataOptions(const std::string& label, Priority priority) {
  OpOptions options = ControlOptions(label, priority);
  options.wire_compression = options_.wire_compression;
  return options;
}

OpOptions PipelineLanes::ReductionOptions(const std::string& label, const ReductionStyle& style) {
  OpOptions options = DataOptions(label, style.priority);
  options.scale = style.scale;
  return options;
}

std::vector<ReplicaSlice> PipelineLanes::SlicesOf(const FlatLayout& layout, DType dtype) const {
  return options_.shard_optimizer_over_replicas
             ? DividedSlices(layout, shard_group_.group_rank, dtype, replicate_groups_)
             : WholeSlices(layout, shard_group_.group_rank);
}

absl::StatusOr<Transfer> PipelineLanes::AllGather(const AllGatherRequest& request, const Parts& parts,
                                                  const CustomAllGather& custom, const Work* after) {
  return SubmitAllGather(all_gather_lanes_, request, parts, custom, after);
}

absl::StatusOr<Transfer> PipelineLanes::Regather(const AllGatherRequest& request, const Parts& parts,
                                                 const CustomAllGather& custom) {
  return SubmitAllGather(regathers_.at(request.group.size()).lanes, request, parts, custom, nullptr);
}

absl::StatusOr<Transfer> PipelineLanes::SubmitAllGather(LaneRoundRobin& lanes,
                                                        const AllGatherRequest& request, const Parts& parts,
                                                        const CustomAllGather& custom, const Work* after) {
  WEFT_RETURN_IF_ERROR(state_.status());
  ++state_.counters().all_gathers;
  if (custom) {
    if (parts != nullptr) return state_.Fail(PartsNotEndToEnd("all-gather", request.label));
    StartedCollective started = custom(request);
    if (!started.ok()) {
      return state_.Fail(Annotate(started.status(), "all-gather of '" + request.label + "'"));
    }
    return Transfer(*std::move(started));
  }
  OpOptions options = DataOptions(request.label, request.priority);
  if (parts != nullptr) {
    return Transfer(state_.engine().AllGather(lanes.Next(), request.part, request.gathered, request.dtype,
                                              parts, std::move(options), after));
  }
  return Transfer(state_.engine().AllGather(lanes.Next(), request.part, request.gathered, request.dtype,
                                            request.gathered_elements, {}, std::move(options), after));
}

absl::StatusOr<Transfer> PipelineLanes::AllGatherShared(const AllGatherRequest& request, const Parts& parts,
                                                        const Work* after) {
  WEFT_RETURN_IF_ERROR(state_.status());
  ++state_.counters().all_gathers;
  if (parts != nullptr) {
    return Transfer(state_.engine().AllGatherShared(all_gather_lanes_.Next(), request.part, request.gathered,
                                                    request.dtype, parts,
                                                    DataOptions(request.label, request.priority), after));
  }
  return Transfer(state_.engine().AllGatherShared(all_gather_lanes_.Next(), request.part, request.gathered,
                                                  request.dtype, request.gathered_elements, {},
                                                  DataOptions(request.label, request.priority), after));
}

Work PipelineLanes::BarrierAfterAllGathers(const std::string& label, const Work* after) {
  return state_.engine().Barrier(all_gather_lanes_.Next(), ControlOptions(label, Priority::kCritical), after);
}

absl::StatusOr<Transfer> PipelineLanes::ReduceScatter(const ReduceScatterRequest& request, const Parts& parts,
                                                      const CustomReduceScatter& custom,
                                                      const ReductionStyle& style) {
  ++state_.counters().reduce_scatters;
  if (custom) {
    WEFT_CHECK(style.scale == 1.0, "a custom reduce-scatter does not scale");
    if (parts != nullptr) return PartsNotEndToEnd("reduce-scatter", request.label);
    StartedCollective started = custom(request);
    if (!started.ok()) return Annotate(started.status(), "reduce-scatter of '" + request.label + "'");
    return Transfer(*std::move(started));
  }
  if (parts != nullptr) {
    return Transfer(state_.engine().ReduceScatter(reduce_scatter_lanes_.Next(), request.input, request.output,
                                                  request.dtype, ReduceOp::kSum, parts,
                                                  ReductionOptions(request.label, style)));
  }
  const int64_t total = std::accumulate(request.counts.begin(), request.counts.end(), int64_t{0});
  return Transfer(state_.engine().ReduceScatter(reduce_scatter_lanes_.Next(), request.input, request.output,
                                                request.dtype, total, ReduceOp::kSum, request.counts,
                                                ReductionOptions(request.label, style)));
}

Work PipelineLanes::AllReduce(const std::string& label, int bucket, void* values, DType dtype, int64_t count,
                              const ReductionStyle& style, const Work* after) {
  ++state_.counters().all_reduces;
  return state_.engine().AllReduce(replicate_lanes_[static_cast<size_t>(bucket)].Next(), values, values,
                                   dtype, count, ReduceOp::kSum, ReductionOptions(label, style), after);
}

Work PipelineLanes::ReduceScatterOverReplicas(const std::string& label, const ReplicaSlice& slice,
                                              const void* input, void* output, DType dtype,
                                              const ReductionStyle& style, const Work* after) {
  const auto bucket = static_cast<size_t>(slice.bucket);
  if (replicate_groups_[bucket].size() > 1) ++state_.counters().reduce_scatters;
  return state_.engine().ReduceScatter(replicate_lanes_[bucket].Next(), input, output, dtype,
                                       slice.range.count, ReduceOp::kSum, slice.counts,
                                       ReductionOptions(label, style), after);
}

Work PipelineLanes::AllGatherUpdates(const std::string& label, const ReplicaSlice& slice, const Parts& parts,
                                     float* shard, std::optional<float*> base, Priority priority,
                                     const Work* after) {
  ++state_.counters().all_gathers;
  const LaneId lane = NextUpdateLane(slice.bucket);
  float* whole = shard + slice.range.begin;
  OpOptions options = DataOptions(label, priority);
  if (parts != nullptr) {
    return base
               ? state_.engine().AllGatherDelta(lane, *base, shard, parts, std::move(options), after)
               : state_.engine().AllGather(lane, shard, shard, DType::kF32, parts, std::move(options), after);
  }
  if (base) {
    return state_.engine().AllGatherDelta(lane, *base, whole, slice.range.count, slice.counts,
                                          std::move(options), after);
  }
  return state_.engine().AllGather(lane, shard + slice.own.begin, whole, DType::kF32, slice.range.count,
                                   slice.counts, std::move(options), after);
}

bool PipelineLanes::UsesDeltaEncoding(int bucket) const {
  const NodeMap& nodes = state_.engine().bootstrap().node_map();
  const std::vector<int>& ranks = replicate_group(bucket).ranks;
  return options_.wire_compression == WireCompression::kLossless &&
         !absl::c_all_of(ranks, [&](int rank) { return nodes.SameNode(rank, ranks[0]); });
}

absl::Status PipelineLanes::AllReduceScalars(const std::string& label, void* values, DType dtype,
                                             int64_t count, ReduceOp op) {
  WEFT_RETURN_IF_ERROR(state_.status());
  if (shard_group_.size() == 1) return absl::OkStatus();
  const size_t bytes = static_cast<size_t>(BytesOf(count, dtype));
  WEFT_CHECK(bytes <= scalars_.bytes(), "AllReduceScalars takes at most kScalarBytes");
  std::memcpy(scalars_.data(), values, bytes);
  Work work = state_.engine().AllReduce(control_lane_, scalars_.data(), scalars_.data(), dtype, count, op,
                                        ControlOptions(label, Priority::kCritical));
  WEFT_RETURN_IF_ERROR(state_.AwaitRelease(work));
  std::memcpy(values, scalars_.data(), bytes);
  return absl::OkStatus();
}

}  // namespace weft
