#include "sharding/node_shared_storage.h"

#include <utility>

#include "sharding/replica_updates.h"
#include "weft/core/status.h"

namespace weft {
namespace {

size_t ShardBytes(const StoredGroup& group, DType dtype) {
  return static_cast<size_t>(group.layout.shard_elements()) * SizeOf(dtype);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeSharedStorage>> NodeSharedStorage::Create(const StoredGroup& group) {
  WEFT_ASSIGN_OR_RETURN(Buffer master, group.context.AcquireShard(ShardBytes(group, DType::kF32)));
  Buffer cast;
  if (group.dtype != DType::kF32) {
    WEFT_ASSIGN_OR_RETURN(cast, group.context.AcquireShard(ShardBytes(group, group.dtype)));
  }
  return std::unique_ptr<NodeSharedStorage>(new NodeSharedStorage(group, std::move(master), std::move(cast)));
}

NodeSharedStorage::NodeSharedStorage(const StoredGroup& group, Buffer master, Buffer cast)
    : PrivateStorage(group, std::move(master)), cast_(std::move(cast)) {}

std::byte* NodeSharedStorage::image() const {
  return place_ ? region().block.data() + *place_ : PrivateStorage::image();
}

std::optional<size_t> NodeSharedStorage::TakePlace() {
  const size_t bytes = static_cast<size_t>(group().layout.gathered_elements()) * SizeOf(group().dtype);
  if (has_custom_all_gather() || bytes == 0) return std::nullopt;
  const std::optional<size_t> place = region().ranges.Take(bytes);
  if (!place) group().context.CountUnsharedImage();
  return place;
}

absl::StatusOr<const void*> NodeSharedStorage::CurrentShard() {
  if (!casts()) return master();  // The engine's gather comes after that of updates by itself.
  const uint64_t now = group().context.writing_time();
  if (std::exchange(cast_in_, now) == now) return cast_.data();
  WEFT_RETURN_IF_ERROR(group().updates.Await());
  CastMaster(cast_.data());
  return cast_.data();
}

absl::Status NodeSharedStorage::Gather(Priority priority) {
  WEFT_RETURN_IF_ERROR(group().context.status());
  place_ = TakePlace();
  if (!place_) return PrivateStorage::Gather(priority);
  WEFT_ASSIGN_OR_RETURN(const void* shard, CurrentShard());
  WEFT_ASSIGN_OR_RETURN(
      gather_, group().context.AllGatherShared({group().name, group().context.shard_group(), shard, image(),
                                                group().dtype, group().layout.gathered_elements(), priority},
                                               group().updates.under_way()));
  return absl::OkStatus();
}

absl::Status NodeSharedStorage::Await() {
  if (!place_) return PrivateStorage::Await();
  WEFT_RETURN_IF_ERROR(group().updates.Await());
  const absl::Status ready = gather_.Wait();
  return ready.ok() ? ready : group().context.Fail(ready);
}

void NodeSharedStorage::Drop() {
  if (!place_) return PrivateStorage::Drop();
  group().context.Retire(std::move(gather_), Buffer());
  // What stayed unsharded beyond the end of its pass may have been written, and is then cast again: nobody
  // may still read the last cast.
  if (casts() && cast_in_ != group().context.writing_time()) group().context.AwaitReleases();
  region().ranges.Give(*std::exchange(place_, std::nullopt));
}

void NodeSharedStorage::ResetAfterError() {
  PrivateStorage::ResetAfterError();
  gather_ = Transfer();
  place_.reset();
}

}  // namespace weft
