#include "weft/sharding/comm_context.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <absl/algorithm/container.h>

#include "sharding/pipeline/image_region.h"
#include "sharding/pipeline/reduction_queue.h"
#include "sharding/pipeline/shard_fences.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Groups without elements hold buffers too, so that they go through the same states.
constexpr size_t kSmallestBlock = 64;
constexpr size_t kScalarBytes = 512;

// The `size` neighbours of the shard group among which this rank is.
absl::StatusOr<ProcessGroup> RegatherGroup(const ProcessGroup& shard_group, int size) {
  if (size == 0) return ProcessGroup{"regather", {}, 0};
  if (size < 2 || shard_group.size() % size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("reshard_after_forward_size is ", size,
                                                   ": it must be more than 1, and divide the ",
                                                   shard_group.size(), " ranks of the shard group"));
  }
  const int place = shard_group.group_rank % size;
  const auto first = shard_group.ranks.begin() + (shard_group.group_rank - place);
  return ProcessGroup{"regather", {first, first + size}, place};
}

}  // namespace

absl::StatusOr<std::unique_ptr<CommContext>> CommContext::Create(CommEngine& engine, ProcessGroup shard_group,
                                                                 std::vector<ProcessGroup> replicate_groups,
                                                                 const Options& options) {
  std::unique_ptr<CommContext> context(
      new CommContext(engine, std::move(shard_group), std::move(replicate_groups), options));
  WEFT_ASSIGN_OR_RETURN(context->regather_group_,
                        RegatherGroup(context->shard_group_, options.regather_size));
  WEFT_RETURN_IF_ERROR(context->AddLanes());
  WEFT_ASSIGN_OR_RETURN(context->scalars_, context->AcquireShard(kScalarBytes));
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
      shards_(engine.heap(), "shards"),
      reductions_(std::make_unique<ReductionQueue>(*this)),
      fences_(options.in_place ? std::make_unique<ShardFences>(*this) : nullptr) {}

CommContext::~CommContext() = default;

absl::Status CommContext::AddLanes() {
  WEFT_ASSIGN_OR_RETURN(all_gather_lanes_,
                        LaneRoundRobin::Add(engine_, shard_group_, LanePurpose::kAllGather));
  WEFT_ASSIGN_OR_RETURN(reduce_scatter_lanes_,
                        LaneRoundRobin::Add(engine_, shard_group_, LanePurpose::kReduceScatter));
  WEFT_ASSIGN_OR_RETURN(control_lane_, engine_.AddLane(shard_group_, LanePurpose::kControl));
  if (regather_group_.size() > 0) {
    WEFT_ASSIGN_OR_RETURN(regather_lanes_,
                          LaneRoundRobin::Add(engine_, regather_group_, LanePurpose::kAllGather));
  }
  for (const ProcessGroup& group : replicate_groups_) {
    const bool scatters = options_.shard_optimizer_over_replicas;
    WEFT_ASSIGN_OR_RETURN(
        replicate_lanes_.emplace_back(),
        LaneRoundRobin::Add(engine_, group,
                            scatters ? LanePurpose::kReduceScatter : LanePurpose::kAllReduce));
    if (!scatters) continue;
    WEFT_ASSIGN_OR_RETURN(update_lanes_.emplace_back(),
                          LaneRoundRobin::Add(engine_, group, LanePurpose::kAllGather));
  }
  return absl::OkStatus();
}

void CommContext::RestartRoundRobin() {
  for (LaneRoundRobin* turns : {&all_gather_lanes_, &regather_lanes_, &reduce_scatter_lanes_})
    turns->Restart();
  for (LaneRoundRobin& turns : replicate_lanes_) turns.Restart();
  for (LaneRoundRobin& turns : update_lanes_) turns.Restart();
}

OpOptions CommContext::Label(const std::string& label, Priority priority) {
  return {priority, Hash64(label, ++submissions_), label};
}

OpOptions CommContext::Carry(const std::string& label, Priority priority) {
  OpOptions options = Label(label, priority);
  options.compression = options_.wire_compression;
  return options;
}

void CommContext::Stop(const absl::Status& cause) {
  if (!status_.ok()) return;
  status_ = Annotate(cause, "sharding stopped");
  engine_.Poison(cause);
}

absl::Status CommContext::Fail(const absl::Status& cause) {
  Stop(cause);
  return status_;
}

absl::Status CommContext::ResetAfterError() {
  WEFT_RETURN_IF_ERROR(engine_.ResetAfterError());
  reductions_->Clear();
  if (fences_ != nullptr) fences_->ResetAfterError();
  if (region_ != nullptr) region_->ranges = RangeAllocator(region_->ranges.capacity());
  retired_.clear();
  updates_.clear();
  ++write_epoch_;
  submissions_ = 0;  // Ranks may have failed at different places.
  RestartRoundRobin();
  status_ = absl::OkStatus();
  return absl::OkStatus();
}

absl::StatusOr<Transfer> CommContext::AllGather(const AllGatherRequest& request,
                                                const CustomAllGather& custom, const Work* after) {
  WEFT_RETURN_IF_ERROR(status_);
  ++counters_.all_gathers;
  if (custom) {
    StartedCollective started = custom(request);
    if (!started.ok()) return Fail(Annotate(started.status(), "all-gather of '" + request.label + "'"));
    return Transfer(*std::move(started));
  }
  const LaneId lane = (&request.group == &regather_group_ ? regather_lanes_ : all_gather_lanes_).Next();
  return Transfer(engine_.AllGather(lane, request.part, request.gathered, request.dtype,
                                    request.gathered_elements, {}, Carry(request.label, request.priority),
                                    after));
}

absl::StatusOr<Transfer> CommContext::AllGatherShared(const AllGatherRequest& request, const Work* after) {
  WEFT_RETURN_IF_ERROR(status_);
  WEFT_RETURN_IF_ERROR(TakeBackReleasedImages());  // Nothing else here would.
  ++counters_.all_gathers;
  return Transfer(engine_.AllGatherShared(all_gather_lanes_.Next(), request.part, request.gathered,
                                          request.dtype, request.gathered_elements, {},
                                          Carry(request.label, request.priority), after));
}

void CommContext::ShareImages(SharedBlock region, int holders) {
  region_bytes_ = region.bytes() / static_cast<size_t>(holders);
  region_ = std::make_unique<ImageRegion>(std::move(region));
}

Work CommContext::FenceAllGathers(const std::string& label, const Work* after) {
  return engine_.Barrier(all_gather_lanes_.Next(), Label(label, Priority::kCritical), after);
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
  // Peers have submitted theirs: a rank that cannot follow stops them all.
  const absl::Status submitted = reductions_->Submit(std::move(reduction));
  return submitted.ok() ? submitted : Fail(submitted);
}

void CommContext::BeginForward() {
  if (fences_ != nullptr && status_.ok()) fences_->EndWriting();
}

absl::Status CommContext::FinishBackward() {
  WEFT_RETURN_IF_ERROR(status_);
  if (fences_ != nullptr) fences_->EndReading();  // First: peers need not wait for this rank's reductions.
  if (const absl::Status drained = reductions_->Drain(); !drained.ok()) return Fail(drained);
  while (!retired_.empty()) WEFT_RETURN_IF_ERROR(TakeBackOldestImage());
  for (Work& update : updates_) WEFT_RETURN_IF_ERROR(Settle(update));
  if (fences_ != nullptr) {
    if (const absl::Status finished = fences_->AwaitReaders(); !finished.ok()) return Fail(finished);
  }
  updates_.clear();  // With the time that ends: groups may wait for them as long as it lasts.
  ++write_epoch_;
  return absl::OkStatus();
}

std::vector<ReplicaSlice> CommContext::SlicesOf(const FlatLayout& layout, DType dtype) const {
  return options_.shard_optimizer_over_replicas
             ? DividedSlices(layout, shard_group_.group_rank, dtype, replicate_groups_)
             : WholeSlices(layout, shard_group_.group_rank);
}

Work* CommContext::AllGatherUpdates(const std::string& label, const ReplicaSlice& slice, float* shard,
                                    std::optional<float*> before, Priority priority, const Work* after) {
  ++counters_.all_gathers;
  const LaneId lane = update_lanes_[static_cast<size_t>(slice.bucket)].Next();
  float* whole = shard + slice.range.begin;
  OpOptions options = Carry(label, priority);
  if (before) {
    return &updates_.emplace_back(engine_.AllGatherDelta(lane, *before, whole, slice.range.count,
                                                         slice.counts, std::move(options), after));
  }
  return &updates_.emplace_back(engine_.AllGather(lane, shard + slice.own.begin, whole, DType::kF32,
                                                  slice.range.count, slice.counts, std::move(options),
                                                  after));
}

bool CommContext::UsesDeltaEncoding(int bucket) const {
  const NodeMap& nodes = engine_.bootstrap().node_map();
  const std::vector<int>& ranks = replicate_group(bucket).ranks;
  return options_.wire_compression == WireCompression::kLossless &&
         !absl::c_all_of(ranks, [&](int rank) { return nodes.SameNode(rank, ranks[0]); });
}

absl::Status CommContext::TakeBackOldestImage() {
  WEFT_RETURN_IF_ERROR(Settle(retired_.front().gather));
  retired_.pop_front();
  return absl::OkStatus();
}

// Note [Retired images]
// An image that is given back while peers still read from it counts as memory until they have. A new one
// waits for the oldest of these, as many as make up its size, and for no more. Then images never take more
// memory than if it waited for all: either as many bytes are freed as are taken, or none is left retired.
absl::Status CommContext::MakeRoomForImage(size_t bytes) {
  size_t freed = 0;
  while (!retired_.empty() && freed < bytes) {
    freed += retired_.front().image.bytes();
    WEFT_RETURN_IF_ERROR(TakeBackOldestImage());
  }
  return TakeBackReleasedImages();
}

absl::Status CommContext::TakeBackReleasedImages() {
  while (!retired_.empty() && retired_.front().gather.TestReleased()) {
    WEFT_RETURN_IF_ERROR(TakeBackOldestImage());
  }
  return absl::OkStatus();
}

void CommContext::Retire(Transfer gather, Buffer image) {
  if (gather.valid()) retired_.push_back({std::move(image), std::move(gather)});
}

void CommContext::AwaitReleases() {
  while (!retired_.empty() && TakeBackOldestImage().ok()) {
  }
  for (Work& update : updates_) {
    if (!Settle(update).ok()) return;
  }
}

absl::StatusOr<Buffer> CommContext::AcquireImage(size_t bytes) {
  WEFT_RETURN_IF_ERROR(status_);
  const size_t block = std::max(bytes, kSmallestBlock);
  WEFT_RETURN_IF_ERROR(MakeRoomForImage(block));
  return images_.Acquire(block);
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
  shards_.ResetPeak();
}

}  // namespace weft
