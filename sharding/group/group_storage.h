// Memory of a parameter group: its master shard and its image.
//
// Ranks of a node share the image if it is in place or the context has an image region; otherwise it is
// private. A group with a shared image gathers into a private one if the region has no room, or if a caller's
// all-gather is set: its ranks may receive different values.
//
// Call order: (Gather Await (KeepPart | Drop))*
//
// Thread safety: none. Collective: Gather, by all ranks of the shard group in one order.
// Lifetime: context, group and updates must outlive the storage.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "sharding/group/master_shard.h"
#include "sharding/group/private_image.h"
#include "sharding/group/shared_image.h"
#include "weft/memory/shared_block.h"
#include "weft/sharding/custom_collectives.h"

namespace weft {

class GroupStorage {
 public:
  // `block`: memory of an image in place, filled with zeros; empty for other groups. Errors:
  // kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<GroupStorage>> Create(CommContext& context, const GroupSpec& group,
                                                              ReplicaUpdates& updates, SharedBlock block);

  // This rank's master shard, zero at first.
  const MasterShard& master() const { return master_; }
  // The whole parameters. REQUIRES: between Await and Drop or KeepPart.
  std::byte* image() const { return is_shared_ ? shared_->data() : private_.data(); }

  // Declares that the master is about to be written: what was cast of it does not count any more.
  void BeginWriting() {
    if (shared_ != nullptr) shared_->BeginWriting();
  }
  // Declares that the master is written and stays unchanged in this epoch. Due before
  // CommContext::BeginForward. Repeating it has no effect.
  absl::Status EndWriting();
  // See SharedImage; null for private images, which are cast when they are gathered.
  std::byte* PlaceForCast(const ShardPiece& piece) {
    return shared_ == nullptr || private_.has_custom_all_gather() ? nullptr : shared_->PlaceForCast(piece);
  }
  void MarkCast() { shared_->MarkCast(); }
  // Starts to bring the values of all ranks into the image.
  absl::Status Gather(Priority priority);
  // Waits until the values are there.
  absl::Status Await();
  // Gives the image back. Peers may still read this rank's part of theirs.
  void Drop();
  // Drops the image except one part, so that the next Gather moves less. Returns false, and drops nothing, if
  // no part can be kept.
  absl::StatusOr<bool> KeepPart();
  void DropPart() { private_.DropPart(); }
  // Drops the image in any state, after an error.
  void ResetAfterError();

  // Replaces the engine's all-gather from the next Gather on. Null: the engine's.
  void SetCustomAllGather(CustomAllGather all_gather) { private_.SetCustomAllGather(std::move(all_gather)); }

 private:
  GroupStorage(CommContext& context, const GroupSpec& group, ReplicaUpdates& updates, MasterShard master)
      : master_(std::move(master)), private_(context, group, updates, master_) {}

  const MasterShard master_;
  PrivateImage private_;
  std::unique_ptr<SharedImage> shared_;  // Null: images are private.
  bool is_shared_ = false;               // True if the last Gather filled the shared image.
};

}  // namespace weft
