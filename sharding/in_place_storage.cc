#include "sharding/in_place_storage.h"

#include <utility>

#include "sharding/replica_updates.h"
#include "sharding/shard_fences.h"
#include "weft/core/status.h"

namespace weft {
namespace {

int64_t OwnBytes(const StoredGroup& group, DType dtype) {
  return group.layout.shard_elements() * static_cast<int64_t>(SizeOf(dtype));
}

std::byte* OwnRange(const StoredGroup& group, const SharedBlock& block) {
  return block.data() + group.context.shard_group().group_rank * OwnBytes(group, group.dtype);
}

}  // namespace

absl::StatusOr<std::unique_ptr<InPlaceStorage>> InPlaceStorage::Create(const StoredGroup& group,
                                                                       SharedBlock block) {
  Buffer master;
  if (group.dtype != DType::kF32) {
    WEFT_ASSIGN_OR_RETURN(master,
                          group.context.AcquireShard(static_cast<size_t>(OwnBytes(group, DType::kF32))));
  }
  return std::unique_ptr<InPlaceStorage>(new InPlaceStorage(group, std::move(block), std::move(master)));
}

InPlaceStorage::InPlaceStorage(const StoredGroup& group, SharedBlock block, Buffer master)
    : PrivateStorage(group, std::move(master), OwnRange(group, block)), block_(std::move(block)) {
  group.context.CountResident(OwnBytes(group, group.dtype));
}

InPlaceStorage::~InPlaceStorage() { group().context.CountResident(-OwnBytes(group(), group().dtype)); }

std::byte* InPlaceStorage::image() const { return is_private_ ? PrivateStorage::image() : block_.data(); }

absl::Status InPlaceStorage::EndWriting() {
  // What peers have read since an earlier pass has not been written: it would have been given back.
  if (is_read_) cast_pass_ = group().context.shard_fences()->pass();
  // What replicas update comes later, to each group by itself.
  return group().context.shards_optimizer_over_replicas() ? absl::OkStatus() : CastOnce();
}

absl::Status InPlaceStorage::CastOnce() {
  WEFT_RETURN_IF_ERROR(group().context.status());
  const uint64_t pass = group().context.shard_fences()->pass();
  if (!casts() || std::exchange(cast_pass_, pass) == pass) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(group().updates.Await());
  PlaceOwnShard(block_.data());
  return absl::OkStatus();
}

absl::Status InPlaceStorage::Gather(Priority priority) {
  is_private_ = has_custom_all_gather();
  if (is_private_) return PrivateStorage::Gather(priority);
  WEFT_RETURN_IF_ERROR(CastOnce());
  is_read_ = true;
  written_ = group().context.shard_fences()->Written(group().name, seen_pass_, group().updates.under_way());
  return absl::OkStatus();
}

absl::Status InPlaceStorage::Await() {
  if (is_private_) return PrivateStorage::Await();
  if (written_ == nullptr) return absl::OkStatus();
  const absl::Status written = std::exchange(written_, nullptr)->Wait();
  return written.ok() ? written : group().context.Fail(written);
}

void InPlaceStorage::Drop() {
  is_read_ = false;
  if (is_private_) PrivateStorage::Drop();
}

void InPlaceStorage::ResetAfterError() {
  PrivateStorage::ResetAfterError();
  is_read_ = false;
  written_.reset();
}

}  // namespace weft
