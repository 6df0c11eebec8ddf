// Updates of a rank's shard by the other replicas, where replicas share the optimizer.
//
// Note [When masters are current]
// Problem: each replica updates a part of the shard, and a write through a ShardView is not visible to this
// class. Rule: a master is *current* when it has the updates of all replicas. FinishBackward of the context
// ends an epoch; afterwards shards may be written, so every master counts as out of date. AllGather makes it
// current once an epoch, however often its group is gathered. The owner must not write it again in that
// epoch: Note [When shards may be written].
//
// Note [Base of delta encoding]
// After an AllGather every replica holds the values that each one has updated, until their owners alone write
// them again. If updates are delta-encoded between nodes, a rank keeps a copy of the values that it
// shared, and shares the difference from them next time. The copy takes four bytes for each element that the
// rank updates. The first AllGather after ranks may have written each other's elements, or after an error,
// shares whole values.
//
// Thread safety: none. Collective: AllGather, by the ranks of each replicate group, for groups in one order.
// Lifetime: context, name and slices must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>

#include "sharding/pipeline/comm_context.h"
#include "sharding/plan/replica_slices.h"

namespace weft {

class ReplicaUpdates {
 public:
  ReplicaUpdates(CommContext& context, const std::string& group, const std::vector<ReplicaSlice>& slices)
      : context_(context), group_(group), slices_(slices) {}

  // Declares that the shard lies in ranges of an image. `parts`: by slice, the parts of the replicas.
  void UseRanges(std::vector<PipelineLanes::Parts> parts) { parts_ = std::move(parts); }

  // Starts to gather the updates of the other replicas, in place. `shard`: its elements end to end, or the
  // image of UseRanges. Nothing happens if the shard is current.
  absl::Status AllGather(float* shard, Priority priority);
  // The work that makes the shard current; null if none is under way.
  const Work* under_way() const { return is_current() ? last_ : nullptr; }
  // Waits until the shard is current, if AllGather was called in this epoch.
  absl::Status Await();
  // Forgets that the shard is current and what its peers hold: after an error, or when all of it was written.
  void Forget() {
    gathered_epoch_.reset();
    peers_hold_base_ = false;
  }

 private:
  bool is_current() const { return gathered_epoch_ == context_.epochs().current(); }
  void AllocateBase();
  // Copies the elements of slice number `slice` that this rank updates to `base`.
  void FillBase(size_t slice, const float* shard, float* base) const;

  CommContext& context_;
  const std::string& group_;
  const std::vector<ReplicaSlice>& slices_;
  std::vector<PipelineLanes::Parts> parts_;  // By slice; empty if the shard lies end to end.
  std::optional<uint64_t> gathered_epoch_;   // Epoch of the last AllGather.
  Work* last_ = nullptr;     // Last gather under way, until it was waited for. Owned by the epochs.
  std::vector<float> base_;  // Values shared last, of all delta-encoded slices end to end.
  bool peers_hold_base_ = false;
};

}  // namespace weft
