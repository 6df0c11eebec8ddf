#include "sharding/group/private_image.h"

#include <cstring>

#include "sharding/pipeline/replica_updates.h"
#include "weft/core/status.h"

namespace weft {

PrivateImage::PrivateImage(const StoredGroup& group, const MasterShard& master)
    : group_(group), master_(master) {
  if (group_.zero_copy) return;
  copy_out_ = PlanCopyOut(group_.layout, group_.alone() ? DType::kF32 : group_.dtype, group_.dtype);
  if (const ProcessGroup& neighbours = group_.context.regather_group(); neighbours.size() > 0) {
    const int ranks = group_.layout.shard_size() / neighbours.size();
    copy_kept_ = PlanShardCopies(group_.layout, neighbours.group_rank * ranks,
                                 (neighbours.group_rank + 1) * ranks, group_.dtype);
  }
}

absl::Status PrivateImage::Gather(Priority priority) {
  if (master_is_image()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(image_, group_.context.AcquireImage(group_.image_bytes()));
  if (!group_.zero_copy && group_.alone()) return absl::OkStatus();
  if (!group_.zero_copy) {
    WEFT_ASSIGN_OR_RETURN(gathered_, group_.context.AcquireImage(group_.gathered_bytes()));
  }
  std::byte* gathered = group_.zero_copy ? image_.data() : gathered_.data();
  WEFT_ASSIGN_OR_RETURN(gather_, kept_ ? GatherKept(gathered, priority) : GatherShards(gathered, priority));
  return absl::OkStatus();
}

absl::StatusOr<Transfer> PrivateImage::GatherShards(std::byte* gathered, Priority priority) {
  // The engine's gather comes after that of updates by itself.
  if (group_.casts() || all_gather_) WEFT_RETURN_IF_ERROR(group_.updates.Await());
  const void* shard = PlaceOwnShard(gathered);
  if (group_.alone() || group_.layout.gathered_elements() == 0) return Transfer();
  return group_.context.AllGather({group_.name, group_.context.shard_group(), shard, gathered, group_.dtype,
                                   group_.layout.gathered_elements(), priority},
                                  all_gather_, group_.updates.under_way());
}

absl::StatusOr<Transfer> PrivateImage::GatherKept(std::byte* gathered, Priority priority) {
  const ProcessGroup& neighbours = group_.context.regather_group();
  std::byte* own = gathered + static_cast<size_t>(neighbours.group_rank) * kept_bytes();
  std::memcpy(own, kept_.data(), kept_bytes());
  group_.context.CountCopy(static_cast<int64_t>(kept_bytes()));
  kept_.Reset();
  return group_.context.AllGather(
      {group_.name, neighbours, own, gathered, group_.dtype, group_.layout.gathered_elements(), priority},
      all_gather_);
}

size_t PrivateImage::kept_bytes() const {
  return group_.gathered_bytes() / static_cast<size_t>(group_.context.regather_group().size());
}

const void* PrivateImage::PlaceOwnShard(std::byte* gathered) {
  if (!group_.casts()) return master_.data();
  std::byte* own = group_.OwnRange(gathered);
  master_.CastTo(own);
  return own;
}

absl::Status PrivateImage::Await() {
  WEFT_RETURN_IF_ERROR(group_.updates.Await());
  if (gather_.valid()) {
    if (const absl::Status ready = gather_.Wait(); !ready.ok()) return group_.context.Fail(ready);
  }
  if (group_.zero_copy) return absl::OkStatus();
  // A shard group of one copies, and casts, straight out of its master.
  group_.context.CountCopy(
      RunCopies(copy_out_, gathered_ ? gathered_.data() : master_.data(), image_.data()));
  group_.context.Retire(std::move(gather_), std::move(gathered_));
  return absl::OkStatus();
}

void PrivateImage::Drop() { group_.context.Retire(std::move(gather_), std::move(image_)); }

absl::StatusOr<bool> PrivateImage::KeepPart() {
  const ProcessGroup& neighbours = group_.context.regather_group();
  if (neighbours.size() == 0 || group_.layout.gathered_elements() == 0) return false;
  WEFT_ASSIGN_OR_RETURN(kept_, group_.context.AcquireImage(kept_bytes()));
  if (group_.zero_copy) {
    std::memcpy(kept_.data(), image_.data() + static_cast<size_t>(neighbours.group_rank) * kept_bytes(),
                kept_bytes());
    group_.context.CountCopy(static_cast<int64_t>(kept_bytes()));
  } else {
    group_.context.CountCopy(RunCopies(copy_kept_, image_.data(), kept_.data()));
  }
  Drop();
  return true;
}

void PrivateImage::ResetAfterError() {
  gather_ = Transfer();
  gathered_.Reset();
  image_.Reset();
  kept_.Reset();
}

}  // namespace weft
