// The ranks of a shard group that share a node have one image together, which an all-gather fills: see Note
// [Images shared on a node]. In a dtype other than fp32 each rank keeps its shard cast, for all gathers until
// the master may be written again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "sharding/group/master_shard.h"
#include "sharding/group/shared_image.h"
#include "sharding/pipeline/image_region.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

class NodeSharedImage final : public SharedImage {
 public:
  // Of a context with an image region. Errors: kResourceExhausted (the cast shard).
  static absl::StatusOr<std::unique_ptr<NodeSharedImage>> Create(const StoredGroup& group,
                                                                 const MasterShard& master);

  std::byte* data() const override { return region().block.data() + *place_; }
  // False: what is under way leaves no room, or the group has no elements.
  absl::StatusOr<bool> Gather(Priority priority) override;
  absl::Status Await() override;
  void Drop() override;
  void ResetAfterError() override;

 private:
  NodeSharedImage(const StoredGroup& group, const MasterShard& master, Buffer cast);
  ImageRegion& region() const { return *group_.context.image_region(); }
  std::optional<size_t> TakePlace();
  // What this rank brings.
  absl::StatusOr<const void*> CurrentShard();

  const StoredGroup group_;
  const MasterShard& master_;
  const Buffer cast_;                // In fp32 there is none.
  std::optional<uint64_t> cast_in_;  // The writing time that it is of.
  std::optional<size_t> place_;      // From Gather to Drop.
  Transfer gather_;                  // Of what lies there.
};

}  // namespace weft
