// An image of a parameter group that one rank has for itself, and that an all-gather fills.
//
//   zero copy   the gathered buffer is the image; in bf16 a cast fills the rank's own range of it first. In a
//               shard group of one and fp32 the master is the image.
//   else        values are copied out of the gathered buffer, which goes back at once; in a shard group of
//               one straight out of the master.
//
//   (Gather Await (KeepPart | Drop))*, as of GroupStorage
//
// Thread safety: none. Collective: Gather, by all ranks of the shard group in one order.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "sharding/group/master_shard.h"
#include "sharding/plan/shard_copies.h"
#include "weft/memory/buffer_pool.h"
#include "weft/sharding/custom_collectives.h"

namespace weft {

class PrivateImage {
 public:
  PrivateImage(const StoredGroup& group, const MasterShard& master);

  std::byte* data() const { return master_is_image() ? master_.data() : image_.data(); }
  absl::Status Gather(Priority priority);
  absl::Status Await();
  void Drop();
  absl::StatusOr<bool> KeepPart();
  void DropPart() { kept_.Reset(); }
  void ResetAfterError();
  void SetCustomAllGather(CustomAllGather all_gather) { all_gather_ = std::move(all_gather); }
  bool has_custom_all_gather() const { return static_cast<bool>(all_gather_); }

 private:
  bool master_is_image() const { return group_.zero_copy && group_.alone() && !group_.casts(); }
  size_t kept_bytes() const;
  absl::StatusOr<Transfer> GatherShards(std::byte* gathered, Priority priority);
  absl::StatusOr<Transfer> GatherKept(std::byte* gathered, Priority priority);
  // What this rank brings: its master, or its own range of the gathered buffer, cast.
  const void* PlaceOwnShard(std::byte* gathered);

  const StoredGroup group_;
  const MasterShard& master_;
  std::vector<PlacedCopy> copy_out_, copy_kept_;  // Without zero copy only.
  Buffer gathered_;                               // Without zero copy only, and only until the copy-out.
  Buffer image_;
  Buffer kept_;  // From KeepPart to the next Gather.
  Transfer gather_;
  CustomAllGather all_gather_;
};

}  // namespace weft
