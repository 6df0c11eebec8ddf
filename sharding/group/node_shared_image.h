// Image of a parameter group that the local ranks of a shard group share and an all-gather fills.
//
// In a dtype other than the master's each rank keeps its shard cast for all gathers of an epoch. See Note
// [Images shared on a node].
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "sharding/group/master_shard.h"
#include "sharding/group/shared_image.h"
#include "sharding/pipeline/comm_context.h"
#include "sharding/pipeline/replica_updates.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

class NodeSharedImage final : public SharedImage {
 public:
  // REQUIRES: the context has an image region. Errors: kResourceExhausted (memory for the cast shard).
  static absl::StatusOr<std::unique_ptr<NodeSharedImage>> Create(CommContext& context, const GroupSpec& group,
                                                                 ReplicaUpdates& updates,
                                                                 const MasterShard& master);

  std::byte* data() const override { return region().block.data() + *place_; }
  // Returns false if the region has no room now, or if the group has no elements.
  absl::StatusOr<bool> Gather(Priority priority) override;
  absl::Status Await() override;
  void Drop() override;
  void ResetAfterError() override;

 private:
  NodeSharedImage(CommContext& context, const GroupSpec& group, ReplicaUpdates& updates,
                  const MasterShard& master, Buffer cast);
  ImageRegion& region() const { return *context_.memory().image_region(); }
  std::optional<size_t> AllocatePlace();
  // This rank's part of the gather, in the image's dtype.
  absl::StatusOr<const void*> CurrentShard();

  CommContext& context_;
  const GroupSpec& group_;
  ReplicaUpdates& updates_;
  const MasterShard& master_;
  const Buffer cast_;                   // The cast shard; empty in the master's dtype.
  std::optional<uint64_t> cast_epoch_;  // Epoch of the cast.
  std::optional<size_t> place_;         // Offset in the region, from Gather to Drop.
  Transfer gather_;                     // The all-gather that fills the image.
};

}  // namespace weft
