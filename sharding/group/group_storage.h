// Memory of a parameter group: its master shard and its image.
//
// The image is shared by ranks of a node where the context was made for that, else private. A shared image
// becomes private until it is dropped if the region has no room for it, or if its ranks may receive different
// values, as from a caller's all-gather.
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

  // This rank's shard in fp32, zero at first.
  std::byte* master() const { return master_.data(); }
  // The whole parameters. REQUIRES: between Await and Drop or KeepPart.
  std::byte* image() const { return is_shared_ ? shared_->data() : private_.data(); }

  // Says that the master is written and stays as it is in this epoch. Due before CommContext::BeginForward.
  // Repeating it has no effect.
  absl::Status EndWriting();
  // Starts to bring the values of all ranks into the image.
  absl::Status Gather(Priority priority);
  // Waits until the values are there.
  absl::Status Await();
  // Gives the image back. Peers may still read this rank's part of theirs.
  void Drop();
  // Drops the image except one part, so that the next Gather moves less. False: no part can be kept, and
  // nothing was dropped.
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
  bool is_shared_ = false;               // Whether the present image is shared.
};

}  // namespace weft
