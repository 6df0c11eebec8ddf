#include "sharding/pipeline/replica_updates.h"

#include <algorithm>
#include <utility>

#include "weft/core/status.h"

namespace weft {

absl::Status ReplicaUpdates::AllGather(float* shard, Priority priority) {
  PipelineLanes& lanes = context_.lanes();
  if (!lanes.shards_optimizer_over_replicas() || is_current()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(context_.state().status());
  AllocateBase();
  context_.epochs().MarkRead();
  gathered_epoch_ = context_.epochs().current();
  last_ = nullptr;
  float* slice_base = base_.data();
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ReplicaSlice& slice = slices_[i];
    if (slice.counts.size() < 2) continue;
    const bool is_delta_encoded = lanes.UsesDeltaEncoding(slice.bucket);
    const auto base = is_delta_encoded && peers_hold_base_ ? std::optional(slice_base) : std::nullopt;
    // Each gather starts after the previous one, so waiting for the last one waits for all.
    last_ = context_.epochs().KeepUpdate(lanes.AllGatherUpdates(
        group_, slice, parts_.empty() ? nullptr : parts_[i], shard, base, priority, last_));
    if (!is_delta_encoded) continue;
    if (!peers_hold_base_) FillBase(i, shard, slice_base);
    slice_base += slice.own.count;
  }
  peers_hold_base_ = true;
  return absl::OkStatus();
}

void ReplicaUpdates::FillBase(size_t slice, const float* shard, float* base) const {
  const FlatRange& own = slices_[slice].own;
  if (parts_.empty()) {
    std::copy_n(shard + own.begin, own.count, base);
    return;
  }
  const int rank = context_.lanes().replicate_group(slices_[slice].bucket).group_rank;
  for (const PartRanges::PlacedRange& placed : parts_[slice]->part(rank)) {
    std::copy_n(shard + placed.range.begin, placed.range.count, base + placed.place);
  }
}

void ReplicaUpdates::AllocateBase() {
  if (!base_.empty()) return;
  int64_t elements = 0;
  for (const ReplicaSlice& slice : slices_) {
    if (context_.lanes().UsesDeltaEncoding(slice.bucket)) elements += slice.own.count;
  }
  base_.resize(static_cast<size_t>(elements));
}

absl::Status ReplicaUpdates::Await() {
  // FinishBackward has waited for the gathers of earlier epochs.
  Work* pending = is_current() ? std::exchange(last_, nullptr) : nullptr;
  return pending == nullptr ? absl::OkStatus() : context_.state().AwaitReady(*pending);
}

}  // namespace weft
