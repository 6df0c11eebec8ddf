#include "sharding/pipeline/replica_updates.h"

#include <algorithm>
#include <utility>

#include "weft/core/status.h"

namespace weft {

absl::Status ReplicaUpdates::Share(float* shard, Priority priority) {
  if (!context_.shards_optimizer_over_replicas() || is_current()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(context_.status());
  MakeRoomToKeep();
  shared_in_ = context_.write_epoch();
  last_ = nullptr;
  float* kept = kept_.data();
  for (const ReplicaSlice& slice : slices_) {
    if (slice.counts.size() < 2) continue;
    const bool keeps = context_.UsesDeltaEncoding(slice.bucket);
    const auto before = keeps && others_have_kept_ ? std::optional(kept) : std::nullopt;
    // One after the other, so that the last stands for all.
    last_ = context_.AllGatherUpdates(group_, slice, shard, before, priority, last_);
    if (!keeps) continue;
    if (!others_have_kept_) std::copy_n(shard + slice.own.begin, slice.own.count, kept);
    kept += slice.own.count;
  }
  others_have_kept_ = true;
  return absl::OkStatus();
}

void ReplicaUpdates::MakeRoomToKeep() {
  if (!kept_.empty()) return;
  int64_t elements = 0;
  for (const ReplicaSlice& slice : slices_) {
    if (context_.UsesDeltaEncoding(slice.bucket)) elements += slice.own.count;
  }
  kept_.resize(static_cast<size_t>(elements));
}

absl::Status ReplicaUpdates::Await() {
  // What an earlier time has left, FinishBackward has waited for.
  Work* pending = is_current() ? std::exchange(last_, nullptr) : nullptr;
  if (pending == nullptr) return absl::OkStatus();
  const absl::Status ready = pending->Wait();
  return ready.ok() ? ready : context_.Fail(ready);
}

}  // namespace weft
