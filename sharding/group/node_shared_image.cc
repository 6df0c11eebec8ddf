#include "sharding/group/node_shared_image.h"

#include <utility>

#include "sharding/pipeline/replica_updates.h"
#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::unique_ptr<NodeSharedImage>> NodeSharedImage::Create(const StoredGroup& group,
                                                                         const MasterShard& master) {
  Buffer cast;
  if (group.casts()) {
    WEFT_ASSIGN_OR_RETURN(cast, group.context.AcquireShard(group.shard_bytes(group.dtype)));
  }
  return std::unique_ptr<NodeSharedImage>(new NodeSharedImage(group, master, std::move(cast)));
}

NodeSharedImage::NodeSharedImage(const StoredGroup& group, const MasterShard& master, Buffer cast)
    : group_(group), master_(master), cast_(std::move(cast)) {}

std::optional<size_t> NodeSharedImage::TakePlace() {
  if (group_.gathered_bytes() == 0) return std::nullopt;
  const std::optional<size_t> place = region().ranges.Take(group_.gathered_bytes());
  if (!place) group_.context.CountUnsharedImage();
  return place;
}

absl::StatusOr<const void*> NodeSharedImage::CurrentShard() {
  if (!group_.casts()) return master_.data();  // The engine's gather comes after that of updates by itself.
  const uint64_t now = group_.context.write_epoch();
  if (std::exchange(cast_in_, now) == now) return cast_.data();
  WEFT_RETURN_IF_ERROR(group_.updates.Await());
  master_.CastTo(cast_.data());
  return cast_.data();
}

absl::StatusOr<bool> NodeSharedImage::Gather(Priority priority) {
  WEFT_RETURN_IF_ERROR(group_.context.status());
  place_ = TakePlace();
  if (!place_) return false;
  WEFT_ASSIGN_OR_RETURN(const void* shard, CurrentShard());
  WEFT_ASSIGN_OR_RETURN(
      gather_, group_.context.AllGatherShared({group_.name, group_.context.shard_group(), shard, data(),
                                               group_.dtype, group_.layout.gathered_elements(), priority},
                                              group_.updates.under_way()));
  return true;
}

absl::Status NodeSharedImage::Await() {
  WEFT_RETURN_IF_ERROR(group_.updates.Await());
  const absl::Status ready = gather_.Wait();
  return ready.ok() ? ready : group_.context.Fail(ready);
}

void NodeSharedImage::Drop() {
  group_.context.Retire(std::move(gather_), Buffer());
  // What stayed unsharded beyond the end of its pass may have been written, and is then cast again: nobody
  // may still read the last cast.
  if (group_.casts() && cast_in_ != group_.context.write_epoch()) group_.context.AwaitReleases();
  region().ranges.Give(*std::exchange(place_, std::nullopt));
}

void NodeSharedImage::ResetAfterError() {
  gather_ = Transfer();
  place_.reset();
}

}  // namespace weft
