#include "sharding/group/node_shared_image.h"

#include <utility>

#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::unique_ptr<NodeSharedImage>> NodeSharedImage::Create(CommContext& context,
                                                                         const GroupSpec& group,
                                                                         ReplicaUpdates& updates,
                                                                         const MasterShard& master) {
  Buffer cast;
  if (group.is_cast()) {
    const int rank = context.lanes().shard_group().group_rank;
    WEFT_ASSIGN_OR_RETURN(cast, context.memory().AcquireShard(group.shard_bytes(rank, group.dtypes.param)));
  }
  return std::unique_ptr<NodeSharedImage>(
      new NodeSharedImage(context, group, updates, master, std::move(cast)));
}

NodeSharedImage::NodeSharedImage(CommContext& context, const GroupSpec& group, ReplicaUpdates& updates,
                                 const MasterShard& master, Buffer cast)
    : context_(context), group_(group), updates_(updates), master_(master), cast_(std::move(cast)) {}

std::optional<size_t> NodeSharedImage::AllocatePlace() {
  if (group_.image_bytes() == 0) return std::nullopt;
  const std::optional<size_t> place = region().ranges.Allocate(group_.image_bytes());
  if (!place) context_.memory().CountUnsharedImage();
  return place;
}

absl::StatusOr<const void*> NodeSharedImage::CurrentShard() {
  if (!group_.is_cast()) return master_.data();  // The all-gather starts after the gather of updates.
  const uint64_t epoch = context_.epochs().current();
  if (std::exchange(cast_epoch_, epoch) == epoch) return cast_.data();
  WEFT_RETURN_IF_ERROR(updates_.Await());
  master_.CastTo(cast_.data());
  return cast_.data();
}

absl::StatusOr<bool> NodeSharedImage::Gather(Priority priority) {
  WEFT_RETURN_IF_ERROR(context_.state().status());
  place_ = AllocatePlace();
  if (!place_) return false;
  WEFT_ASSIGN_OR_RETURN(const void* shard, CurrentShard());
  // Gathers into the region acquire no image, which would free released ones.
  WEFT_RETURN_IF_ERROR(context_.memory().FreeReleasedImages());
  WEFT_ASSIGN_OR_RETURN(gather_, context_.lanes().AllGatherShared(
                                     {group_.name(), context_.lanes().shard_group(), shard, data(),
                                      group_.dtypes.param, group_.layout.gathered_elements(), priority},
                                     group_.image_parts, updates_.under_way()));
  return true;
}

absl::Status NodeSharedImage::Await() {
  WEFT_RETURN_IF_ERROR(updates_.Await());
  return context_.state().AwaitReady(gather_);
}

void NodeSharedImage::Drop() {
  context_.memory().Retire(std::move(gather_), Buffer());
  // A group that stayed unsharded past the end of its epoch may have been written since, and is then cast
  // again: no peer may still read the last cast.
  if (group_.is_cast() && cast_epoch_ != context_.epochs().current()) context_.AwaitReleases();
  region().ranges.Free(*std::exchange(place_, std::nullopt));
}

void NodeSharedImage::ResetAfterError() {
  gather_ = Transfer();
  place_.reset();
}

}  // namespace weft
