#include "sharding/replica_updates.h"

#include <utility>

#include "weft/core/status.h"

namespace weft {

absl::Status ReplicaUpdates::Share(float* shard, Priority priority) {
  if (!context_.shards_optimizer_over_replicas() || is_current()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(context_.status());
  shared_in_ = context_.writing_time();
  last_ = nullptr;
  for (const ReplicaSlice& slice : slices_) {
    if (slice.counts.size() < 2) continue;
    // One after the other, so that the last stands for all.
    last_ = context_.ShareUpdates(group_, slice, shard, priority, last_);
  }
  return absl::OkStatus();
}

absl::Status ReplicaUpdates::Await() {
  // What an earlier time has left, FinishBackward has waited for.
  Work* pending = is_current() ? std::exchange(last_, nullptr) : nullptr;
  if (pending == nullptr) return absl::OkStatus();
  const absl::Status ready = pending->Wait();
  return ready.ok() ? ready : context_.Fail(ready);
}

}  // namespace weft
