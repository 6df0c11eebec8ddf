#include "weft/sharding/comm_context.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

// Groups without elements hold buffers too, so that they go through the same states.
constexpr size_t kSmallestBlock = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<CommContext>> CommContext::Create(CommEngine& engine, ProcessGroup shard_group,
                                                                 std::vector<ProcessGroup> replicate_groups,
                                                                 const Options& options) {
  std::unique_ptr<CommContext> context(
      new CommContext(engine, std::move(shard_group), std::move(replicate_groups), options));
  WEFT_RETURN_IF_ERROR(context->AddLanes());
  WEFT_ASSIGN_OR_RETURN(context->scalars_, context->AcquireShard(kSmallestBlock));
  return context;
}

CommContext::CommContext(CommEngine& engine, ProcessGroup shard_group,
                         std::vector<ProcessGroup> replicate_groups, const Options& options)
    : engine_(engine),
      shard_group_(std::move(shard_group)),
      replicate_groups_(std::move(replicate_groups)),
      options_(options),
      images_(engine.heap(), "gathered images"),
      gradients_(engine.heap(), "full gradients"),
      shards_(engine.heap(), "shards") {}

CommContext::~CommContext() = default;

absl::Status CommContext::AddLanes() {
  WEFT_ASSIGN_OR_RETURN(all_gather_lane_, engine_.AddLane(shard_group_, LanePurpose::kAllGather));
  WEFT_ASSIGN_OR_RETURN(reduce_scatter_lane_, engine_.AddLane(shard_group_, LanePurpose::kReduceScatter));
  WEFT_ASSIGN_OR_RETURN(control_lane_, engine_.AddLane(shard_group_, LanePurpose::kControl));
  for (const ProcessGroup& group : replicate_groups_) {
    WEFT_ASSIGN_OR_RETURN(all_reduce_lanes_.emplace_back(), engine_.AddLane(group, LanePurpose::kAllReduce));
  }
  return absl::OkStatus();
}

OpOptions CommContext::Label(const std::string& label, Priority priority) {
  return {priority, Hash64(label, ++submissions_), label};
}

absl::Status CommContext::Fail(const absl::Status& cause) {
  if (status_.ok()) {
    status_ = Annotate(cause, "sharding stopped");
    engine_.Poison(cause);
  }
  return status_;
}

absl::Status CommContext::ResetAfterError() {
  WEFT_RETURN_IF_ERROR(engine_.ResetAfterError());
  in_flight_.clear();
  retired_.clear();
  submissions_ = 0;  // Ranks may have failed at different places.
  status_ = absl::OkStatus();
  return absl::OkStatus();
}

absl::StatusOr<Work> CommContext::AllGather(const std::string& label, const void* shard, void* gathered,
                                            DType dtype, int64_t gathered_elements, Priority priority) {
  WEFT_RETURN_IF_ERROR(status_);
  ++counters_.all_gathers;
  return engine_.AllGather(all_gather_lane_, shard, gathered, dtype, gathered_elements, {},
                           Label(label, priority));
}

absl::Status CommContext::AllReduceScalars(const std::string& label, void* values, DType dtype, int64_t count,
                                           ReduceOp op) {
  WEFT_RETURN_IF_ERROR(status_);
  if (shard_group_.size() == 1) return absl::OkStatus();
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  WEFT_CHECK(bytes <= scalars_.bytes(), "more scalars than there is room for");
  std::memcpy(scalars_.data(), values, bytes);
  Work work = engine_.AllReduce(control_lane_, scalars_.data(), scalars_.data(), dtype, count, op,
                                Label(label, Priority::kCritical));
  WEFT_RETURN_IF_ERROR(Settle(work));
  std::memcpy(values, scalars_.data(), bytes);
  return absl::OkStatus();
}

absl::Status CommContext::Reduce(Reduction reduction) {
  WEFT_RETURN_IF_ERROR(status_);
  const bool replicated = std::any_of(
      reduction.slices.begin(), reduction.slices.end(),
      [this](BucketSlice slice) { return replicate_groups_[static_cast<size_t>(slice.bucket)].size() > 1; });
  WEFT_RETURN_IF_ERROR(Admit(replicated));
  InFlight entry{std::move(reduction), {}, {}, {}};
  WEFT_RETURN_IF_ERROR(SubmitReduceScatter(entry));
  SubmitAllReduces(entry);
  in_flight_.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::Status CommContext::Admit(bool replicated) {
  const auto scattering = [](const InFlight& entry) { return static_cast<bool>(entry.reduction.input); };
  const auto replicating = [](const InFlight& entry) { return !entry.all_reduces.empty(); };
  const auto full = [this](auto&& uses, int limit) {
    return std::count_if(in_flight_.begin(), in_flight_.end(), uses) >= limit;
  };
  for (InFlight& entry : in_flight_) {
    const bool held = scattering(entry) && !entry.reduce_scatter.TestReleased();
    if (held && !full(scattering, options_.max_reduce_scatters)) break;
    WEFT_RETURN_IF_ERROR(ReleaseInput(entry));
  }
  while (!in_flight_.empty() && !scattering(in_flight_.front())) {
    const bool waits = replicating(in_flight_.front());
    if (waits && !(replicated && full(replicating, options_.max_all_reduces))) break;
    WEFT_RETURN_IF_ERROR(CompleteOldest());
  }
  return absl::OkStatus();
}

absl::Status CommContext::SubmitReduceScatter(InFlight& entry) {
  Reduction& reduction = entry.reduction;
  if (shard_group_.size() == 1 || reduction.shard_elements == 0) {
    entry.output = std::move(reduction.input);
    return absl::OkStatus();
  }
  const int64_t bytes = reduction.shard_elements * static_cast<int64_t>(SizeOf(reduction.dtype));
  WEFT_ASSIGN_OR_RETURN(entry.output, AcquireShard(static_cast<size_t>(bytes)));
  ++counters_.reduce_scatters;
  entry.reduce_scatter =
      engine_.ReduceScatter(reduce_scatter_lane_, reduction.input.data(), entry.output.data(),
                            reduction.dtype, reduction.shard_elements * shard_group_.size(), ReduceOp::kSum,
                            {}, Label(reduction.label, Priority::kReduce));
  return absl::OkStatus();
}

void CommContext::SubmitAllReduces(InFlight& entry) {
  const Reduction& reduction = entry.reduction;
  const Work* after = entry.reduce_scatter.valid() ? &entry.reduce_scatter : nullptr;
  for (const BucketSlice& slice : reduction.slices) {
    const auto bucket = static_cast<size_t>(slice.bucket);
    if (replicate_groups_[bucket].size() == 1) continue;
    std::byte* values =
        entry.output.data() + slice.range.begin * static_cast<int64_t>(SizeOf(reduction.dtype));
    ++counters_.all_reduces;
    entry.all_reduces.push_back(engine_.AllReduce(all_reduce_lanes_[bucket], values, values, reduction.dtype,
                                                  slice.range.count, ReduceOp::kSum,
                                                  Label(reduction.label, Priority::kReduce), after));
  }
}

absl::Status CommContext::ReleaseInput(InFlight& entry) {
  if (!entry.reduction.input) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(Settle(entry.reduce_scatter));
  entry.reduction.input.Reset();
  return absl::OkStatus();
}

absl::Status CommContext::CompleteOldest() {
  InFlight& oldest = in_flight_.front();
  WEFT_RETURN_IF_ERROR(ReleaseInput(oldest));
  for (Work& all_reduce : oldest.all_reduces) WEFT_RETURN_IF_ERROR(Settle(all_reduce));
  WEFT_ASSIGN_OR_RETURN(*oldest.reduction.result, Widen(std::move(oldest.output), oldest.reduction));
  in_flight_.pop_front();
  return absl::OkStatus();
}

absl::StatusOr<Buffer> CommContext::Widen(Buffer shard, const Reduction& reduction) {
  if (reduction.dtype == DType::kF32) return shard;
  const auto bytes = static_cast<size_t>(reduction.shard_elements) * sizeof(float);
  WEFT_ASSIGN_OR_RETURN(Buffer widened, AcquireShard(bytes));
  ConvertRun(shard.data(), reduction.dtype, widened.data(), DType::kF32, reduction.shard_elements);
  CountCopy(static_cast<int64_t>(bytes));
  return widened;
}

absl::Status CommContext::FinishBackward() {
  WEFT_RETURN_IF_ERROR(status_);
  while (!in_flight_.empty()) WEFT_RETURN_IF_ERROR(CompleteOldest());
  return DrainRetired();
}

absl::Status CommContext::DrainRetired() {
  for (Retired& retired : retired_) {
    if (retired.work.valid()) WEFT_RETURN_IF_ERROR(Settle(retired.work));
  }
  retired_.clear();
  return absl::OkStatus();
}

absl::Status CommContext::Settle(Work& work) {
  const absl::Status released = work.WaitReleased();
  return released.ok() ? released : Fail(released);
}

void CommContext::Retire(Work work, Buffer image) { retired_.push_back({std::move(image), std::move(work)}); }

absl::StatusOr<Buffer> CommContext::AcquireImage(size_t bytes) {
  WEFT_RETURN_IF_ERROR(status_);
  WEFT_RETURN_IF_ERROR(DrainRetired());
  return images_.Acquire(std::max(bytes, kSmallestBlock));
}

absl::StatusOr<Buffer> CommContext::AcquireGradients(size_t bytes) {
  WEFT_RETURN_IF_ERROR(status_);
  return gradients_.Acquire(std::max(bytes, kSmallestBlock));
}

absl::StatusOr<Buffer> CommContext::AcquireShard(size_t bytes) {
  WEFT_RETURN_IF_ERROR(status_);
  return shards_.Acquire(std::max(bytes, kSmallestBlock));
}

void CommContext::ResetPeaks() {
  images_.ResetPeak();
  gradients_.ResetPeak();
}

}  // namespace weft
