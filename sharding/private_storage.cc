#include "sharding/private_storage.h"

#include <cstring>

#include "sharding/replica_updates.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

size_t BytesOf(int64_t elements, DType dtype) { return static_cast<size_t>(elements) * SizeOf(dtype); }

}  // namespace

PrivateStorage::PrivateStorage(const StoredGroup& group, Buffer master)
    : PrivateStorage(group, std::move(master), nullptr) {}

PrivateStorage::PrivateStorage(const StoredGroup& group, Buffer own_master, std::byte* master)
    : group_(group), own_master_(std::move(own_master)), master_(own_master_ ? own_master_.data() : master) {
  if (own_master_) std::memset(own_master_.data(), 0, own_master_.bytes());
  if (group_.zero_copy) return;
  copy_out_ = PlanCopyOut(group_.layout, alone() ? DType::kF32 : group_.dtype, group_.dtype);
  if (const ProcessGroup& neighbours = group_.context.regather_group(); neighbours.size() > 0) {
    const int ranks = group_.layout.shard_size() / neighbours.size();
    copy_kept_ = PlanShardCopies(group_.layout, neighbours.group_rank * ranks,
                                 (neighbours.group_rank + 1) * ranks, group_.dtype);
  }
}

absl::Status PrivateStorage::Gather(Priority priority) {
  if (master_is_image()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(image_,
                        group_.context.AcquireImage(BytesOf(group_.layout.image_elements(), group_.dtype)));
  if (!group_.zero_copy && alone()) return absl::OkStatus();
  if (!group_.zero_copy) {
    WEFT_ASSIGN_OR_RETURN(
        gathered_, group_.context.AcquireImage(BytesOf(group_.layout.gathered_elements(), group_.dtype)));
  }
  std::byte* gathered = group_.zero_copy ? image_.data() : gathered_.data();
  WEFT_ASSIGN_OR_RETURN(gather_, kept_ ? GatherKept(gathered, priority) : GatherShards(gathered, priority));
  return absl::OkStatus();
}

absl::StatusOr<Transfer> PrivateStorage::GatherShards(std::byte* gathered, Priority priority) {
  // The engine's gather comes after that of updates by itself.
  if (casts() || all_gather_) WEFT_RETURN_IF_ERROR(group_.updates.Await());
  const void* shard = casts() ? PlaceOwnShard(gathered) : master_;
  if (alone() || group_.layout.gathered_elements() == 0) return Transfer();
  return group_.context.AllGather({group_.name, group_.context.shard_group(), shard, gathered, group_.dtype,
                                   group_.layout.gathered_elements(), priority},
                                  all_gather_, group_.updates.under_way());
}

absl::StatusOr<Transfer> PrivateStorage::GatherKept(std::byte* gathered, Priority priority) {
  const ProcessGroup& neighbours = group_.context.regather_group();
  std::byte* own = gathered + static_cast<size_t>(neighbours.group_rank) * kept_bytes();
  std::memcpy(own, kept_.data(), kept_bytes());
  group_.context.CountCopy(static_cast<int64_t>(kept_bytes()));
  kept_.Reset();
  return group_.context.AllGather(
      {group_.name, neighbours, own, gathered, group_.dtype, group_.layout.gathered_elements(), priority},
      all_gather_);
}

size_t PrivateStorage::kept_bytes() const {
  return BytesOf(group_.layout.gathered_elements() / group_.context.regather_group().size(), group_.dtype);
}

void PrivateStorage::CastMaster(std::byte* target) {
  const int64_t elements = group_.layout.shard_elements();
  ConvertRun(master_, DType::kF32, target, group_.dtype, elements);
  group_.context.CountCopy(static_cast<int64_t>(BytesOf(elements, group_.dtype)));
}

const void* PrivateStorage::PlaceOwnShard(std::byte* gathered) {
  const size_t shard_bytes = BytesOf(group_.layout.shard_elements(), group_.dtype);
  std::byte* own = gathered + static_cast<size_t>(group_.context.shard_group().group_rank) * shard_bytes;
  CastMaster(own);
  return own;
}

absl::Status PrivateStorage::Await() {
  WEFT_RETURN_IF_ERROR(group_.updates.Await());
  if (gather_.valid()) {
    if (const absl::Status ready = gather_.Wait(); !ready.ok()) return group_.context.Fail(ready);
  }
  if (group_.zero_copy) return absl::OkStatus();
  // A shard group of one copies, and casts, straight out of its master.
  group_.context.CountCopy(RunCopies(copy_out_, gathered_ ? gathered_.data() : master_, image_.data()));
  group_.context.Retire(std::move(gather_), std::move(gathered_));
  return absl::OkStatus();
}

void PrivateStorage::Drop() { group_.context.Retire(std::move(gather_), std::move(image_)); }

absl::StatusOr<bool> PrivateStorage::KeepPart() {
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

void PrivateStorage::ResetAfterError() {
  gather_ = Transfer();
  gathered_.Reset();
  image_.Reset();
  kept_.Reset();
}

}  // namespace weft
