// How what the other replicas update of a rank's shard comes to it, where they share the optimizer.
//
// Note [When masters are current]
// A master is *current* when it has all that the others have updated. Nobody sees a write through a
// ShardView, so whatever could have been written counts: FinishBackward of the context, after which shards
// may be written, leaves every master out of date. Share brings it up to date, once until the next
// FinishBackward, however often its group is gathered. Its owner must not write it again until then: Note
// [When shards may be written].
//
// Note [What the others have]
// After a Share every replica has what each has updated, until these are written again by their owners alone.
// Where updates cross nodes compressed, a rank keeps what it has shared, and shares next time what changed of
// it: four bytes for each element that it updates. The first Share after ranks may have written each other's
// elements, or after an error, shares them whole.
//
// Thread safety: none. Collective: Share, by the ranks of each replicate group, for groups in one order.
// Lifetime: the context must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "weft/sharding/comm_context.h"
#include "weft/sharding/replica_slices.h"

namespace weft {

class ReplicaUpdates {
 public:
  ReplicaUpdates(CommContext& context, const std::string& group, const std::vector<ReplicaSlice>& slices)
      : context_(context), group_(group), slices_(slices) {}

  // Starts to gather, in place, what the others have updated; nothing happens where the shard is current.
  absl::Status Share(float* shard, Priority priority);
  // What the shard is current after; null where nothing is under way.
  const Work* under_way() const { return is_current() ? last_ : nullptr; }
  // Until it is current, if it was shared.
  absl::Status Await();
  // After an error, or when all of the shard was written.
  void Forget() {
    shared_in_.reset();
    others_have_kept_ = false;
  }

 private:
  bool is_current() const { return shared_in_ == context_.write_epoch(); }
  void MakeRoomToKeep();

  CommContext& context_;
  const std::string& group_;
  const std::vector<ReplicaSlice>& slices_;
  std::optional<uint64_t> shared_in_;  // Whose updates were shared.
  Work* last_ = nullptr;               // Of the gathers, until it was waited for. The context has it.
  std::vector<float> kept_;            // What was shared as what changes, of all slices end to end.
  bool others_have_kept_ = false;
};

}  // namespace weft
