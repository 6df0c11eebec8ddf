// The ranks of a shard group that share a node have one image together, which an all-gather fills: see Note
// [Images shared on a node]. In a dtype other than fp32 each rank keeps its shard cast, for all gathers until
// the master may be written again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "sharding/image_region.h"
#include "sharding/private_storage.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

// What a caller's own all-gather makes goes to a private image, and so does what finds no place.
class NodeSharedStorage final : public PrivateStorage {
 public:
  // Of a context with an image region. Errors: kResourceExhausted (the master, or its cast).
  static absl::StatusOr<std::unique_ptr<NodeSharedStorage>> Create(const StoredGroup& group);

  std::byte* image() const override;
  absl::Status Gather(Priority priority) override;
  absl::Status Await() override;
  void Drop() override;
  void ResetAfterError() override;

 private:
  NodeSharedStorage(const StoredGroup& group, Buffer master, Buffer cast);
  ImageRegion& region() const { return *group().context.image_region(); }
  // Where the image is to lie; nowhere: it is a private one.
  std::optional<size_t> TakePlace();
  // What this rank brings.
  absl::StatusOr<const void*> CurrentShard();

  const Buffer cast_;                // In fp32 there is none.
  std::optional<uint64_t> cast_in_;  // The writing time that it is of.
  std::optional<size_t> place_;      // From Gather to Drop.
  Transfer gather_;                  // Of what lies there.
};

}  // namespace weft
