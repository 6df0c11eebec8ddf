#include "sharding/in_place_storage.h"

#include <utility>

#include "sharding/replica_updates.h"
#include "sharding/shard_fences.h"

namespace weft {
namespace {

int64_t OwnBytes(const StoredGroup& group) {
  return group.layout.shard_elements() * static_cast<int64_t>(sizeof(float));
}

std::byte* OwnRange(const StoredGroup& group, const SharedBlock& block) {
  return block.data() + group.context.shard_group().group_rank * OwnBytes(group);
}

}  // namespace

InPlaceStorage::InPlaceStorage(const StoredGroup& group, SharedBlock block)
    : PrivateStorage(group, OwnRange(group, block)), block_(std::move(block)) {
  group.context.CountResident(OwnBytes(group));
}

InPlaceStorage::~InPlaceStorage() { group().context.CountResident(-OwnBytes(group())); }

std::byte* InPlaceStorage::image() const { return is_private_ ? PrivateStorage::image() : block_.data(); }

absl::Status InPlaceStorage::Gather(Priority priority) {
  is_private_ = has_custom_all_gather();
  if (is_private_) return PrivateStorage::Gather(priority);
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
  if (is_private_) PrivateStorage::Drop();
}

void InPlaceStorage::ResetAfterError() {
  PrivateStorage::ResetAfterError();
  written_.reset();
}

}  // namespace weft
