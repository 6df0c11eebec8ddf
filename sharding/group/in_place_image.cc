#include "sharding/group/in_place_image.h"

#include <utility>

#include "sharding/pipeline/replica_updates.h"
#include "sharding/pipeline/shard_fences.h"
#include "weft/core/status.h"

namespace weft {

InPlaceImage::InPlaceImage(const StoredGroup& group, const MasterShard& master, SharedBlock block)
    : group_(group), master_(master), block_(std::move(block)) {
  group_.context.CountResident(static_cast<int64_t>(group_.shard_bytes(group_.dtype)));
}

InPlaceImage::~InPlaceImage() {
  group_.context.CountResident(-static_cast<int64_t>(group_.shard_bytes(group_.dtype)));
}

absl::Status InPlaceImage::EndWriting() {
  // What peers have read since an earlier pass has not been written: it would have been given back.
  if (is_read_) cast_pass_ = group_.context.shard_fences()->pass();
  // What replicas update comes later, to each group by itself.
  return group_.context.shards_optimizer_over_replicas() ? absl::OkStatus() : CastOnce();
}

absl::Status InPlaceImage::CastOnce() {
  WEFT_RETURN_IF_ERROR(group_.context.status());
  const uint64_t pass = group_.context.shard_fences()->pass();
  if (!group_.casts() || std::exchange(cast_pass_, pass) == pass) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(group_.updates.Await());
  master_.CastTo(group_.OwnRange(block_.data()));
  return absl::OkStatus();
}

absl::StatusOr<bool> InPlaceImage::Gather(Priority) {
  WEFT_RETURN_IF_ERROR(CastOnce());
  is_read_ = true;
  written_ = group_.context.shard_fences()->Written(group_.name, seen_pass_, group_.updates.under_way());
  return true;
}

absl::Status InPlaceImage::Await() {
  if (written_ == nullptr) return absl::OkStatus();
  const absl::Status written = std::exchange(written_, nullptr)->Wait();
  return written.ok() ? written : group_.context.Fail(written);
}

void InPlaceImage::ResetAfterError() {
  is_read_ = false;
  written_.reset();
}

}  // namespace weft
