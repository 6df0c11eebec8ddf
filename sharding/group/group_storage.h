// Where the values of a parameter group lie: its master shard, and its image, which is one that ranks of a
// node share, where that is what the context is made for, or one of the rank's own.
//
//   (Gather Await (KeepPart | Drop))*
//
// A shared image that has no place now, or whose ranks may get different values, as from a caller's own
// all-gather, is a private one until it is dropped.
//
// Thread safety: none. Collective: Gather, by all ranks of the shard group in one order.
// Lifetime: what StoredGroup names must outlive the storage.
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
  // `block`: the image of a group in place, zero; else empty. Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<GroupStorage>> Create(const StoredGroup& group, SharedBlock block);

  // This rank's shard in fp32, zero at first.
  std::byte* master() const { return master_.data(); }
  // The whole parameters, from Await until the image is dropped.
  std::byte* image() const { return is_shared_ ? shared_->data() : private_.data(); }

  // The master has been written, and will not be again in this pass. Due before CommContext::BeginForward;
  // nothing happens where that was done in this pass.
  absl::Status EndWriting();
  // Starts to bring the values of all ranks into the image.
  absl::Status Gather(Priority priority);
  // Until they are there.
  absl::Status Await();
  // Gives the image back. Peers may still read what this rank gave to theirs.
  void Drop();
  // Drops the image but for a part, so that the next Gather has less to do. False: no part can be kept, and
  // nothing was dropped.
  absl::StatusOr<bool> KeepPart();
  void DropPart() { private_.DropPart(); }
  // After an error: drops the image, whatever had become of it.
  void ResetAfterError();

  // In place of the engine's from the next Gather on. Null: the engine's.
  void SetCustomAllGather(CustomAllGather all_gather) { private_.SetCustomAllGather(std::move(all_gather)); }

 private:
  GroupStorage(const StoredGroup& group, MasterShard master)
      : master_(std::move(master)), private_(group, master_) {}

  const MasterShard master_;
  PrivateImage private_;
  std::unique_ptr<SharedImage> shared_;  // Null: images are private.
  bool is_shared_ = false;               // The image, from Gather to Drop.
};

}  // namespace weft
