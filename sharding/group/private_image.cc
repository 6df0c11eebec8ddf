#include "sharding/group/private_image.h"

#include <cstring>
#include <utility>

#include "weft/core/status.h"

namespace weft {
PrivateImage::PrivateImage(CommContext& context, const GroupSpec& group, ReplicaUpdates& updates,
                           const MasterShard& master)
    : context_(context), group_(group), updates_(updates), master_(master) {
  if (group_.image_parts != nullptr && keeps_parts()) {
    absl::StatusOr<PipelineLanes::Parts> parts =
        PartRanges::Make(RegatherRanges(group_.layout, regather_group().size()));
    WEFT_CHECK(parts.ok(), ToStd(parts.status().message()));
    kept_parts_ = *std::move(parts);
  }
  if (group_.is_zero_copy()) return;
  const DType dtype = group_.dtypes.param;
  copy_out_ = PlanCopyOut(group_.layout, group_.is_alone() ? group_.dtypes.master : dtype, dtype);
  if (keeps_parts()) {
    const int ranks = group_.layout.shard_size() / regather_group().size();
    copy_kept_ = PlanShardCopies(group_.layout, regather_group().group_rank * ranks,
                                 (regather_group().group_rank + 1) * ranks, group_.dtypes.param);
  }
}

absl::Status PrivateImage::Gather(Priority priority) {
  if (master_is_image()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(Buffer image, context_.memory().AcquireImage(group_.image_bytes()));
  if (!group_.is_zero_copy() && !group_.is_alone()) {
    WEFT_ASSIGN_OR_RETURN(gathered_, context_.memory().AcquireImage(group_.gathered_bytes()));
  }
  image_ = std::move(image);
  if (!group_.is_zero_copy() && group_.is_alone()) return absl::OkStatus();
  std::byte* gathered = group_.is_zero_copy() ? image_.data() : gathered_.data();
  WEFT_ASSIGN_OR_RETURN(gather_,
                        kept_ ? GatherKeptParts(gathered, priority) : GatherShards(gathered, priority));
  return absl::OkStatus();
}

absl::StatusOr<Transfer> PrivateImage::GatherShards(std::byte* gathered, Priority priority) {
  // The engine's all-gather starts after the gather of updates; a cast or a caller's all-gather must wait for
  // it.
  if (group_.is_cast() || all_gather_) WEFT_RETURN_IF_ERROR(updates_.Await());
  const void* shard = PlaceOwnShard(gathered);
  if (group_.is_alone() || group_.layout.gathered_elements() == 0) return Transfer();
  return context_.lanes(group_.mesh)
      .AllGather({group_.name(), context_.lanes(group_.mesh).shard_group(), shard, gathered,
                  group_.dtypes.param, group_.layout.gathered_elements(), priority},
                 group_.image_parts, all_gather_, updates_.under_way());
}

absl::StatusOr<Transfer> PrivateImage::GatherKeptParts(std::byte* gathered, Priority priority) {
  CopyKept(gathered, /*out=*/false);
  kept_.Reset();
  const std::byte* own = gathered;
  if (kept_parts_ == nullptr) own += static_cast<size_t>(regather_group().group_rank) * kept_bytes();
  return context_.lanes(group_.mesh)
      .Regather({group_.name(), regather_group(), own, gathered, group_.dtypes.param,
                 group_.layout.gathered_elements(), priority},
                kept_parts_, all_gather_);
}

size_t PrivateImage::kept_bytes() const {
  if (kept_parts_ == nullptr) return group_.gathered_bytes() / static_cast<size_t>(regather_group().size());
  const int64_t count = kept_parts_->counts()[static_cast<size_t>(regather_group().group_rank)];
  return static_cast<size_t>(BytesOf(count, group_.dtypes.param));
}

void PrivateImage::CopyKept(std::byte* gathered, bool out) {
  const auto copy = [&](std::byte* whole, std::byte* kept, size_t bytes) {
    if (bytes > 0) std::memcpy(out ? kept : whole, out ? whole : kept, bytes);
  };
  const int rank = regather_group().group_rank;
  if (kept_parts_ == nullptr) {
    copy(gathered + static_cast<size_t>(rank) * kept_bytes(), kept_.data(), kept_bytes());
  } else {
    const size_t element_bytes = SizeOf(group_.dtypes.param);
    for (const PartRanges::PlacedRange& placed : kept_parts_->part(rank)) {
      copy(gathered + static_cast<size_t>(placed.range.begin) * element_bytes,
           kept_.data() + static_cast<size_t>(placed.place) * element_bytes,
           static_cast<size_t>(placed.range.count) * element_bytes);
    }
  }
  context_.state().CountCopy(static_cast<int64_t>(kept_bytes()));
}

const void* PrivateImage::PlaceOwnShard(std::byte* gathered) {
  if (!group_.is_cast()) return master_.data();
  const int rank = context_.lanes(group_.mesh).shard_group().group_rank;
  master_.CastInto(gathered);
  // With parts in ranges, the gather is in place if its part is the whole image.
  return group_.image_parts != nullptr ? gathered : group_.RangeOf(rank, gathered);
}

absl::Status PrivateImage::Await() {
  WEFT_RETURN_IF_ERROR(updates_.Await());
  if (gather_.valid()) {
    WEFT_RETURN_IF_ERROR(context_.state().AwaitReady(gather_));
  }
  if (group_.is_zero_copy()) return absl::OkStatus();
  // A shard group of one rank copies and casts straight out of its master.
  context_.state().CountCopy(
      RunCopies(copy_out_, gathered_ ? gathered_.data() : master_.data(), image_.data()));
  context_.memory().Retire(std::move(gather_), std::move(gathered_));
  return absl::OkStatus();
}

void PrivateImage::Drop() { context_.memory().Retire(std::move(gather_), std::move(image_)); }

absl::StatusOr<bool> PrivateImage::KeepPart() {
  if (!keeps_parts() || group_.layout.gathered_elements() == 0) return false;
  WEFT_ASSIGN_OR_RETURN(kept_, context_.memory().AcquireImage(kept_bytes()));
  if (group_.is_zero_copy()) {
    CopyKept(image_.data(), /*out=*/true);
  } else {
    context_.state().CountCopy(RunCopies(copy_kept_, image_.data(), kept_.data()));
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
