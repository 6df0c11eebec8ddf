// Every rank has an image of its own, which an all-gather fills.
//
//   zero copy   the gathered buffer is the image; in bf16 a cast fills the rank's own range of it first. In a
//               shard group of one and fp32 the master is the image.
//   else        values are copied out of the gathered buffer, which goes back at once; in a shard group of
//               one straight out of the master.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sharding/group_storage.h"
#include "sharding/shard_copies.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

class PrivateStorage : public GroupStorage {
 public:
  PrivateStorage(const StoredGroup& group, Buffer master);

  std::byte* master() const final { return master_; }
  std::byte* image() const override { return master_is_image() ? master_ : image_.data(); }
  absl::Status Gather(Priority priority) override;
  absl::Status Await() override;
  void Drop() override;
  absl::StatusOr<bool> KeepPart() final;
  void DropPart() final { kept_.Reset(); }
  void ResetAfterError() override;
  void SetCustomAllGather(CustomAllGather all_gather) final { all_gather_ = std::move(all_gather); }

 protected:
  // Without a buffer of its own, the master is what somebody else holds.
  PrivateStorage(const StoredGroup& group, Buffer own_master, std::byte* master);

  const StoredGroup& group() const { return group_; }
  bool has_custom_all_gather() const { return static_cast<bool>(all_gather_); }
  bool casts() const { return group_.dtype != DType::kF32; }
  // Puts this rank's shard, converted, somewhere; and into its own range of a gathered buffer: returns where
  // that is.
  void CastMaster(std::byte* target);
  const void* PlaceOwnShard(std::byte* gathered);

 private:
  bool alone() const { return group_.context.shard_group().size() == 1; }
  bool master_is_image() const { return group_.zero_copy && alone() && !casts(); }
  size_t kept_bytes() const;
  absl::StatusOr<Transfer> GatherShards(std::byte* gathered, Priority priority);
  absl::StatusOr<Transfer> GatherKept(std::byte* gathered, Priority priority);

  const StoredGroup group_;
  std::vector<PlacedCopy> copy_out_, copy_kept_;  // Without zero copy only.
  Buffer own_master_;
  std::byte* const master_;
  Buffer gathered_;  // Without zero copy only, and only until the copy-out.
  Buffer image_;
  Buffer kept_;  // From KeepPart to the next Gather.
  Transfer gather_;
  CustomAllGather all_gather_;
};

}  // namespace weft
