#include "sharding/pipeline/reduction_queue.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/core/tensor_view.h"

namespace weft {
namespace {

int64_t OwnElements(const Reduction& reduction) {
  return reduction.counts[static_cast<size_t>(reduction.lanes->shard_group().group_rank)];
}

bool Scatters(const Reduction& reduction) {
  const int64_t total = std::accumulate(reduction.counts.begin(), reduction.counts.end(), int64_t{0});
  return reduction.lanes->shard_group().size() > 1 && total > 0;
}

bool Replicates(const Reduction& reduction) {
  return std::any_of(reduction.slices.begin(), reduction.slices.end(),
                     [&reduction](const ReplicaSlice& slice) {
                       return reduction.lanes->replicate_group(slice.bucket).size() > 1;
                     });
}

}  // namespace

absl::Status ReductionQueue::Submit(Reduction reduction) {
  WEFT_RETURN_IF_ERROR(state_.status());
  // Peers have submitted theirs: a rank that cannot follow must fail them.
  const absl::Status submitted = Enqueue(std::move(reduction));
  return submitted.ok() ? submitted : state_.Fail(submitted);
}

absl::Status ReductionQueue::Enqueue(Reduction reduction) {
  GradientSums& sums = *reduction.sums;
  const bool takes_partial = sums.has_partial;
  sums.has_partial = reduction.scope == ReduceScope::kShard;
  ++sums.under_way;
  Entry& entry = entries_.emplace_back(Entry{std::move(reduction), next_number_++, takes_partial});
  ScaleInCollectives(entry);
  WEFT_RETURN_IF_ERROR(SubmitReduceScatter(entry));
  const bool is_chained = entry.reduce_scatter.work() != nullptr || !entry.reduce_scatter.valid();
  if (entry.reduction.scope == ReduceScope::kShardAndReplicate && !takes_partial && is_chained) {
    entry.is_continued = true;
    WEFT_RETURN_IF_ERROR(SubmitReplication(entry, entry.reduce_scatter.work()));
  }
  WEFT_RETURN_IF_ERROR(BoundReduceScatters());
  const int64_t lag = entry.reduction.lanes->shard_group().size() == 1 ? 0 : bounds_.max_reduce_scatters;
  WEFT_RETURN_IF_ERROR(ContinueThrough(entry.number - lag));
  return DeliverFinished();
}

absl::Status ReductionQueue::Drain() {
  WEFT_RETURN_IF_ERROR(ContinueThrough(next_number_));
  while (!entries_.empty()) {
    Entry& oldest = entries_.front();
    WEFT_RETURN_IF_ERROR(ReleaseInput(oldest));
    WEFT_RETURN_IF_ERROR(AwaitReplications(oldest));
    WEFT_RETURN_IF_ERROR(Deliver(oldest));
    entries_.pop_front();
  }
  return absl::OkStatus();
}

void ReductionQueue::Clear() {
  entries_.clear();
  next_number_ = 0;  // Ranks may have failed after different submissions.
}

void ReductionQueue::ScaleInCollectives(Entry& entry) {
  Reduction& reduction = entry.reduction;
  const bool is_final = reduction.scope == ReduceScope::kShardAndReplicate && !entry.takes_partial;
  if (!is_final || reduction.dtype != reduction.sum_dtype) return;
  if (!Replicates(reduction)) {
    if (!Scatters(reduction) || reduction.reduce_scatter) return;
    entry.scatter_scale = std::exchange(reduction.scale, 1.0);
    return;
  }
  const bool replicates_all = std::all_of(
      reduction.slices.begin(), reduction.slices.end(),
      [&](const ReplicaSlice& slice) { return reduction.lanes->replicate_group(slice.bucket).size() > 1; });
  if (replicates_all) entry.replication_scale = std::exchange(reduction.scale, 1.0);
}

absl::Status ReductionQueue::SubmitReduceScatter(Entry& entry) {
  Reduction& reduction = entry.reduction;
  if (!Scatters(reduction)) {
    entry.output = std::move(reduction.input);
    return absl::OkStatus();
  }
  const int64_t bytes = BytesOf(OwnElements(reduction), reduction.dtype);
  WEFT_ASSIGN_OR_RETURN(entry.output, memory_.AcquireShard(static_cast<size_t>(bytes)));
  PipelineLanes& lanes = *reduction.lanes;
  WEFT_ASSIGN_OR_RETURN(entry.reduce_scatter,
                        lanes.ReduceScatter({reduction.label, lanes.shard_group(), reduction.input.data(),
                                             entry.output.data(), reduction.dtype, reduction.counts},
                                            reduction.parts, reduction.reduce_scatter,
                                            {entry.scatter_scale, reduction.priority}));
  return absl::OkStatus();
}

absl::Status ReductionQueue::SubmitReplication(Entry& entry, const Work* after) {
  if (!Replicates(entry.reduction)) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(BoundReplications());
  if (entry.reduction.lanes->shards_optimizer_over_replicas()) return SubmitReplicaScatters(entry, after);
  SubmitAllReduces(entry, after);
  return absl::OkStatus();
}

void ReductionQueue::SubmitAllReduces(Entry& entry, const Work* after) {
  const Reduction& reduction = entry.reduction;
  for (const ReplicaSlice& slice : reduction.slices) {
    if (reduction.lanes->replicate_group(slice.bucket).size() == 1) continue;
    std::byte* values = entry.output.data() + BytesOf(slice.range.begin, reduction.dtype);
    entry.replications.push_back(
        reduction.lanes->AllReduce(reduction.label, slice.bucket, values, reduction.dtype, slice.range.count,
                                   {entry.replication_scale, reduction.priority}, after));
  }
}

// Buckets without replicas take part too: their values move to the same output.
absl::Status ReductionQueue::SubmitReplicaScatters(Entry& entry, const Work* after) {
  const Reduction& reduction = entry.reduction;
  const auto element_bytes = static_cast<int64_t>(SizeOf(reduction.dtype));
  const int64_t bytes = UpdatedElements(reduction.slices) * element_bytes;
  WEFT_ASSIGN_OR_RETURN(entry.updated, memory_.AcquireShard(static_cast<size_t>(bytes)));
  std::byte* part = entry.updated.data();
  for (const ReplicaSlice& slice : reduction.slices) {
    entry.replications.push_back(reduction.lanes->ReduceScatterOverReplicas(
        reduction.label, slice, entry.output.data() + slice.range.begin * element_bytes, part,
        reduction.dtype, {entry.replication_scale, reduction.priority}, after));
    part += slice.own.count * element_bytes;
  }
  return absl::OkStatus();
}

absl::Status ReductionQueue::ContinueThrough(int64_t number) {
  for (Entry& entry : entries_) {
    if (entry.number > number) break;
    if (!entry.is_continued) WEFT_RETURN_IF_ERROR(Continue(entry));
  }
  return absl::OkStatus();
}

absl::Status ReductionQueue::Continue(Entry& entry) {
  Reduction& reduction = entry.reduction;
  GradientSums& sums = *reduction.sums;
  if (entry.reduce_scatter.valid()) WEFT_RETURN_IF_ERROR(state_.AwaitReady(entry.reduce_scatter));
  entry.is_continued = true;
  const int64_t elements = OwnElements(reduction);
  if (reduction.scope == ReduceScope::kShard) {
    --sums.under_way;
    return AddTo(sums.partial, reduction.sum_dtype, {std::move(entry.output), reduction.dtype}, elements);
  }
  if (!entry.takes_partial) return SubmitReplication(entry, nullptr);
  WEFT_CHECK(static_cast<bool>(sums.partial), "a reduction takes a partial sum that does not exist");
  if (!Replicates(reduction)) {
    // Nothing more is sent, so the sum stays in sum_dtype.
    WEFT_RETURN_IF_ERROR(
        AddTo(sums.partial, reduction.sum_dtype, {std::move(entry.output), reduction.dtype}, elements));
    entry.output = std::move(sums.partial);
    reduction.dtype = reduction.sum_dtype;
    return absl::OkStatus();
  }
  AddRun(sums.partial.data(), reduction.sum_dtype, entry.output.data(), reduction.dtype, elements);
  sums.partial.Reset();
  return SubmitReplication(entry, nullptr);
}

template <typename Uses>
int64_t ReductionQueue::Count(Uses uses) const {
  return std::count_if(entries_.begin(), entries_.end(), uses);
}

// Frees released full gradients, oldest first, and waits while more than the bound are in use.
absl::Status ReductionQueue::BoundReduceScatters() {
  const auto scattering = [](const Entry& entry) { return entry.is_scattering(); };
  for (Entry& entry : entries_) {
    const bool held = entry.is_scattering() && !entry.reduce_scatter.TestReleased();
    if (held && Count(scattering) <= bounds_.max_reduce_scatters) break;
    WEFT_RETURN_IF_ERROR(ReleaseInput(entry));
  }
  return absl::OkStatus();
}

absl::Status ReductionQueue::BoundReplications() {
  const auto replicating = [](const Entry& entry) { return entry.is_replicating(); };
  while (Count(replicating) >= bounds_.max_all_reduces) {
    WEFT_RETURN_IF_ERROR(AwaitReplications(*std::find_if(entries_.begin(), entries_.end(), replicating)));
  }
  return absl::OkStatus();
}

absl::Status ReductionQueue::ReleaseInput(Entry& entry) {
  if (!entry.is_scattering()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(state_.AwaitRelease(entry.reduce_scatter));
  entry.reduction.input.Reset();
  return absl::OkStatus();
}

absl::Status ReductionQueue::AwaitReplications(Entry& entry) {
  for (Work& replication : entry.replications) WEFT_RETURN_IF_ERROR(state_.AwaitRelease(replication));
  entry.replications.clear();
  if (entry.updated) entry.output = std::move(entry.updated);
  return absl::OkStatus();
}

// Entries with hooks wait for Drain: hooks may communicate, and ranks finish entries at different places.
absl::Status ReductionQueue::DeliverFinished() {
  const auto released = [](const Work& work) { return work.TestReleased(); };
  while (!entries_.empty()) {
    Entry& oldest = entries_.front();
    const bool finished = oldest.is_continued && !oldest.is_scattering() && !oldest.reduction.hook &&
                          std::all_of(oldest.replications.begin(), oldest.replications.end(), released);
    if (!finished) break;
    WEFT_RETURN_IF_ERROR(AwaitReplications(oldest));
    WEFT_RETURN_IF_ERROR(Deliver(oldest));
    entries_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status ReductionQueue::Deliver(Entry& entry) {
  Reduction& reduction = entry.reduction;
  if (reduction.scope == ReduceScope::kShard) return absl::OkStatus();
  GradientSums& sums = *reduction.sums;
  --sums.under_way;
  const int64_t elements = UpdatedElements(reduction.slices);
  const bool hooked = static_cast<bool>(reduction.hook);
  Buffer own;
  WEFT_RETURN_IF_ERROR(AddTo(hooked ? own : sums.reduced, reduction.sum_dtype,
                             {std::move(entry.output), reduction.dtype, reduction.scale}, elements));
  if (hooked) WEFT_RETURN_IF_ERROR(RunHook(reduction, std::move(own)));
  if (!reduction.reduced_hook) return absl::OkStatus();
  const absl::Status used = reduction.reduced_hook();
  return used.ok() ? used : state_.Fail(used);
}

absl::Status ReductionQueue::RunHook(const Reduction& reduction, Buffer own) {
  const DType dtype = reduction.sum_dtype;
  const int64_t elements = UpdatedElements(reduction.slices);
  const absl::Status hooked =
      reduction.hook(reduction.label, TensorView::Contiguous(own.data(), dtype, {elements}));
  if (!hooked.ok()) {
    return state_.Fail(Annotate(hooked, "gradient hook of parameter group '" + reduction.label + "'"));
  }
  return AddTo(reduction.sums->reduced, dtype, {std::move(own), dtype}, elements);
}

// The first addend becomes the sum. Converting an addend counts as a copy.
absl::Status ReductionQueue::AddTo(Buffer& sum, DType sum_dtype, Addend addend, int64_t elements) {
  const int64_t bytes = BytesOf(elements, sum_dtype);
  if (addend.dtype != sum_dtype) state_.CountCopy(bytes);
  const void* source = addend.values.data();
  if (sum) {
    AddRun(source, addend.dtype, sum.data(), sum_dtype, elements, addend.scale);
    return absl::OkStatus();
  }
  if (addend.dtype == sum_dtype) {
    sum = std::move(addend.values);
  } else {
    WEFT_ASSIGN_OR_RETURN(sum, memory_.AcquireShard(static_cast<size_t>(bytes)));
  }
  ConvertRun(source, addend.dtype, sum.data(), sum_dtype, elements, addend.scale);
  return absl::OkStatus();
}

}  // namespace weft
