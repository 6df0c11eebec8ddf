#include "sharding/group/in_place_image.h"

#include <utility>

#include "weft/core/status.h"

namespace weft {

InPlaceImage::InPlaceImage(CommContext& context, const GroupSpec& group, ReplicaUpdates& updates,
                           const MasterShard& master, SharedBlock block)
    : context_(context), group_(group), updates_(updates), master_(master), block_(std::move(block)) {
  context_.memory().CountResident(ResidentBytes());
}

InPlaceImage::~InPlaceImage() { context_.memory().CountResident(-ResidentBytes()); }

int64_t InPlaceImage::ResidentBytes() const {
  return static_cast<int64_t>(group_.image_bytes()) / group_.layout.shard_size();
}

absl::Status InPlaceImage::EndWriting() {
  // A group that stayed unsharded since an earlier epoch has not been written. Its cast is still valid, and
  // peers may be reading it.
  if (is_read_) cast_epoch_ = context_.epochs().current();
  // If replicas share the optimizer, the cast follows the gather of each group's updates.
  return context_.lanes().shards_optimizer_over_replicas() ? absl::OkStatus() : CastOnce();
}

// Null if replicas share the optimizer: this rank then updates only a part of what it casts.
std::byte* InPlaceImage::PlaceForCast(const ShardPiece& piece) {
  if (!group_.is_cast() || is_read_ || context_.lanes().shards_optimizer_over_replicas()) return nullptr;
  return master_.CastPlaceOf(piece, block_.data());
}

void InPlaceImage::MarkCast() {
  cast_epoch_ = context_.epochs().current();
  master_.CountCast();
}

absl::Status InPlaceImage::CastOnce() {
  WEFT_RETURN_IF_ERROR(context_.state().status());
  const uint64_t epoch = context_.epochs().current();
  if (!group_.is_cast() || std::exchange(cast_epoch_, epoch) == epoch) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(updates_.Await());
  master_.CastInto(block_.data());
  return absl::OkStatus();
}

absl::StatusOr<bool> InPlaceImage::Gather(Priority) {
  WEFT_RETURN_IF_ERROR(CastOnce());
  is_read_ = true;
  written_ = context_.epochs().WrittenBarrier(group_.name(), seen_epoch_, updates_.under_way());
  return true;
}

absl::Status InPlaceImage::Await() {
  if (written_ == nullptr) return absl::OkStatus();
  const std::shared_ptr<Work> written = std::exchange(written_, nullptr);
  return context_.state().AwaitReady(*written);
}

void InPlaceImage::ResetAfterError() {
  is_read_ = false;
  written_.reset();
}

}  // namespace weft
