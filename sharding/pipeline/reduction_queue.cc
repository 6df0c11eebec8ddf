#include "sharding/pipeline/reduction_queue.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {

absl::Status CommContext::ReductionQueue::Submit(Reduction reduction) {
  GradientSums& sums = *reduction.sums;
  const bool takes_partial = sums.partial_ahead;
  sums.partial_ahead = reduction.scope == ReduceScope::kShard;
  ++sums.under_way;
  Entry& entry = entries_.emplace_back(Entry{std::move(reduction), next_number_++, takes_partial});
  WEFT_RETURN_IF_ERROR(SubmitReduceScatter(entry));
  const bool chained = entry.reduce_scatter.work() != nullptr || !entry.reduce_scatter.valid();
  if (entry.reduction.scope == ReduceScope::kShardAndReplicate && !takes_partial && chained) {
    entry.continued = true;
    WEFT_RETURN_IF_ERROR(SubmitReplication(entry, entry.reduce_scatter.work()));
  }
  WEFT_RETURN_IF_ERROR(BoundReduceScatters());
  const int64_t lag = context_.shard_group_.size() == 1 ? 0 : context_.options_.max_reduce_scatters;
  WEFT_RETURN_IF_ERROR(ContinueThrough(entry.number - lag));
  return DeliverFinished();
}

absl::Status CommContext::ReductionQueue::Drain() {
  WEFT_RETURN_IF_ERROR(ContinueThrough(next_number_));
  while (!entries_.empty()) {
    Entry& oldest = entries_.front();
    WEFT_RETURN_IF_ERROR(ReleaseInput(oldest));
    WEFT_RETURN_IF_ERROR(SettleReplications(oldest));
    WEFT_RETURN_IF_ERROR(Deliver(oldest));
    entries_.pop_front();
  }
  return absl::OkStatus();
}

void CommContext::ReductionQueue::Clear() {
  entries_.clear();
  next_number_ = 0;  // Ranks may have failed at different places.
}

int64_t CommContext::ReductionQueue::OwnElements(const Reduction& reduction) const {
  return reduction.counts[static_cast<size_t>(context_.shard_group_.group_rank)];
}

absl::Status CommContext::ReductionQueue::SubmitReduceScatter(Entry& entry) {
  Reduction& reduction = entry.reduction;
  const int64_t total = std::accumulate(reduction.counts.begin(), reduction.counts.end(), int64_t{0});
  if (context_.shard_group_.size() == 1 || total == 0) {
    entry.output = std::move(reduction.input);
    return absl::OkStatus();
  }
  const int64_t bytes = OwnElements(reduction) * static_cast<int64_t>(SizeOf(reduction.dtype));
  WEFT_ASSIGN_OR_RETURN(entry.output, context_.AcquireShard(static_cast<size_t>(bytes)));
  ++context_.counters_.reduce_scatters;
  if (reduction.reduce_scatter) return StartCustom(entry);
  entry.reduce_scatter = Transfer(context_.engine_.ReduceScatter(
      context_.reduce_scatter_lanes_.Next(), reduction.input.data(), entry.output.data(), reduction.dtype,
      total, ReduceOp::kSum, reduction.counts, context_.Carry(reduction.label, Priority::kReduce)));
  return absl::OkStatus();
}

absl::Status CommContext::ReductionQueue::StartCustom(Entry& entry) {
  const Reduction& reduction = entry.reduction;
  StartedCollective started =
      reduction.reduce_scatter({reduction.label, context_.shard_group_, reduction.input.data(),
                                entry.output.data(), reduction.dtype, reduction.counts});
  if (!started.ok()) return Annotate(started.status(), "reduce-scatter of '" + reduction.label + "'");
  entry.reduce_scatter = Transfer(*std::move(started));
  return absl::OkStatus();
}

absl::Status CommContext::ReductionQueue::SubmitReplication(Entry& entry, const Work* after) {
  if (!Replicates(entry.reduction)) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(BoundReplications());
  if (context_.shards_optimizer_over_replicas()) return SubmitReplicaScatters(entry, after);
  SubmitAllReduces(entry, after);
  return absl::OkStatus();
}

void CommContext::ReductionQueue::SubmitAllReduces(Entry& entry, const Work* after) {
  const Reduction& reduction = entry.reduction;
  for (const ReplicaSlice& slice : reduction.slices) {
    const auto bucket = static_cast<size_t>(slice.bucket);
    if (context_.replicate_groups_[bucket].size() == 1) continue;
    std::byte* values =
        entry.output.data() + slice.range.begin * static_cast<int64_t>(SizeOf(reduction.dtype));
    ++context_.counters_.all_reduces;
    entry.replications.push_back(context_.engine_.AllReduce(
        context_.replicate_lanes_[bucket].Next(), values, values, reduction.dtype, slice.range.count,
        ReduceOp::kSum, context_.Carry(reduction.label, Priority::kReduce), after));
  }
}

// Buckets without replicas take part too: what they have goes the same way, from one buffer to the other.
absl::Status CommContext::ReductionQueue::SubmitReplicaScatters(Entry& entry, const Work* after) {
  const Reduction& reduction = entry.reduction;
  const auto element_bytes = static_cast<int64_t>(SizeOf(reduction.dtype));
  const int64_t bytes = UpdatedElements(reduction.slices) * element_bytes;
  WEFT_ASSIGN_OR_RETURN(entry.updated, context_.AcquireShard(static_cast<size_t>(bytes)));
  std::byte* part = entry.updated.data();
  for (const ReplicaSlice& slice : reduction.slices) {
    const auto bucket = static_cast<size_t>(slice.bucket);
    if (context_.replicate_groups_[bucket].size() > 1) ++context_.counters_.reduce_scatters;
    entry.replications.push_back(context_.engine_.ReduceScatter(
        context_.replicate_lanes_[bucket].Next(), entry.output.data() + slice.range.begin * element_bytes,
        part, reduction.dtype, slice.range.count, ReduceOp::kSum, slice.counts,
        context_.Carry(reduction.label, Priority::kReduce), after));
    part += slice.own.count * element_bytes;
  }
  return absl::OkStatus();
}

absl::Status CommContext::ReductionQueue::ContinueThrough(int64_t number) {
  for (Entry& entry : entries_) {
    if (entry.number > number) break;
    if (!entry.continued) WEFT_RETURN_IF_ERROR(Continue(entry));
  }
  return absl::OkStatus();
}

absl::Status CommContext::ReductionQueue::Continue(Entry& entry) {
  Reduction& reduction = entry.reduction;
  GradientSums& sums = *reduction.sums;
  if (entry.reduce_scatter.valid()) {
    if (const absl::Status ready = entry.reduce_scatter.Wait(); !ready.ok()) return context_.Fail(ready);
  }
  entry.continued = true;
  const int64_t elements = OwnElements(reduction);
  if (reduction.scope == ReduceScope::kShard) {
    --sums.under_way;
    return AddTo(sums.partial, std::move(entry.output), reduction.dtype, elements);
  }
  if (!entry.takes_partial) return SubmitReplication(entry, nullptr);
  WEFT_CHECK(static_cast<bool>(sums.partial), "a reduction takes a partial sum that is not there");
  if (!Replicates(reduction)) {
    // Nothing is sent any more: the sum stays in fp32.
    WEFT_RETURN_IF_ERROR(AddTo(sums.partial, std::move(entry.output), reduction.dtype, elements));
    entry.output = std::move(sums.partial);
    reduction.dtype = DType::kF32;
    return absl::OkStatus();
  }
  AddRun(sums.partial.data(), DType::kF32, entry.output.data(), reduction.dtype, elements);
  sums.partial.Reset();
  return SubmitReplication(entry, nullptr);
}

bool CommContext::ReductionQueue::Replicates(const Reduction& reduction) const {
  return std::any_of(reduction.slices.begin(), reduction.slices.end(), [this](const ReplicaSlice& slice) {
    return context_.replicate_groups_[static_cast<size_t>(slice.bucket)].size() > 1;
  });
}

template <typename Uses>
int64_t CommContext::ReductionQueue::Count(Uses uses) const {
  return std::count_if(entries_.begin(), entries_.end(), uses);
}

// Takes back, oldest first, the full gradients that have been released, and waits while there are too many.
absl::Status CommContext::ReductionQueue::BoundReduceScatters() {
  const auto scattering = [](const Entry& entry) { return entry.scattering(); };
  for (Entry& entry : entries_) {
    const bool held = entry.scattering() && !entry.reduce_scatter.TestReleased();
    if (held && Count(scattering) <= context_.options_.max_reduce_scatters) break;
    WEFT_RETURN_IF_ERROR(ReleaseInput(entry));
  }
  return absl::OkStatus();
}

absl::Status CommContext::ReductionQueue::BoundReplications() {
  const auto replicating = [](const Entry& entry) { return entry.replicating(); };
  while (Count(replicating) >= context_.options_.max_all_reduces) {
    WEFT_RETURN_IF_ERROR(SettleReplications(*std::find_if(entries_.begin(), entries_.end(), replicating)));
  }
  return absl::OkStatus();
}

absl::Status CommContext::ReductionQueue::ReleaseInput(Entry& entry) {
  if (!entry.scattering()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(context_.Settle(entry.reduce_scatter));
  entry.reduction.input.Reset();
  return absl::OkStatus();
}

absl::Status CommContext::ReductionQueue::SettleReplications(Entry& entry) {
  for (Work& replication : entry.replications) WEFT_RETURN_IF_ERROR(context_.Settle(replication));
  entry.replications.clear();
  if (entry.updated) entry.output = std::move(entry.updated);
  return absl::OkStatus();
}

// Hooks may communicate, and this is called wherever a rank happens to have finished: they wait for Drain.
absl::Status CommContext::ReductionQueue::DeliverFinished() {
  const auto released = [](const Work& work) { return work.TestReleased(); };
  while (!entries_.empty()) {
    Entry& oldest = entries_.front();
    const bool finished = oldest.continued && !oldest.scattering() && !oldest.reduction.hook &&
                          std::all_of(oldest.replications.begin(), oldest.replications.end(), released);
    if (!finished) break;
    WEFT_RETURN_IF_ERROR(SettleReplications(oldest));
    WEFT_RETURN_IF_ERROR(Deliver(oldest));
    entries_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status CommContext::ReductionQueue::Deliver(Entry& entry) {
  Reduction& reduction = entry.reduction;
  if (reduction.scope == ReduceScope::kShard) return absl::OkStatus();
  GradientSums& sums = *reduction.sums;
  --sums.under_way;
  const int64_t elements = UpdatedElements(reduction.slices);
  const bool hooked = static_cast<bool>(reduction.hook);
  Buffer own;
  WEFT_RETURN_IF_ERROR(AddTo(hooked ? own : sums.reduced, std::move(entry.output), reduction.dtype, elements,
                             reduction.scale));
  return hooked ? RunHook(reduction, std::move(own)) : absl::OkStatus();
}

absl::Status CommContext::ReductionQueue::RunHook(const Reduction& reduction, Buffer own) {
  const int64_t elements = UpdatedElements(reduction.slices);
  const absl::Status hooked =
      reduction.hook(reduction.label, {reinterpret_cast<float*>(own.data()), static_cast<size_t>(elements)});
  if (!hooked.ok()) {
    return context_.Fail(Annotate(hooked, "gradient hook of parameter group '" + reduction.label + "'"));
  }
  return AddTo(reduction.sums->reduced, std::move(own), DType::kF32, elements);
}

// The first addend becomes the sum. Widening it, or while it is added, counts as a cast.
absl::Status CommContext::ReductionQueue::AddTo(Buffer& sum, Buffer addend, DType dtype, int64_t elements,
                                                float scale) {
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  if (dtype != DType::kF32) context_.CountCopy(bytes);
  if (sum) {
    AddRun(addend.data(), dtype, sum.data(), DType::kF32, elements, scale);
    return absl::OkStatus();
  }
  const void* source = addend.data();
  if (dtype == DType::kF32) {
    sum = std::move(addend);
  } else {
    WEFT_ASSIGN_OR_RETURN(sum, context_.AcquireShard(static_cast<size_t>(bytes)));
  }
  ConvertRun(source, dtype, sum.data(), DType::kF32, elements, scale);
  return absl::OkStatus();
}

}  // namespace weft
