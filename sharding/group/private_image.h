// Image of a parameter group that belongs to one rank and is filled by an all-gather.
//
//   zero copy   The gather writes the image; in a dtype other than the master's a cast fills the rank's
//               own place in it first. In a shard group of one rank and the master's dtype the master is the
//               image.
//   otherwise   Values are copied out of the gathered buffer, which is then freed. A shard group of one
//               rank copies straight out of its master.
//
// Call order: (Gather Await (KeepPart | Drop))*, as in GroupStorage.
//
// Thread safety: none. Collective: Gather, by all ranks of the shard group in one order.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "sharding/group/master_shard.h"
#include "sharding/pipeline/comm_context.h"
#include "sharding/pipeline/replica_updates.h"
#include "sharding/plan/shard_copies.h"
#include "weft/memory/buffer_pool.h"
#include "weft/sharding/custom_collectives.h"

namespace weft {

class PrivateImage {
 public:
  PrivateImage(CommContext& context, const GroupSpec& group, ReplicaUpdates& updates,
               const MasterShard& master);

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
  bool master_is_image() const { return group_.is_zero_copy() && group_.is_alone() && !group_.is_cast(); }
  bool keeps_parts() const { return group_.regather_size > 0; }
  // REQUIRES: keeps_parts().
  const ProcessGroup& regather_group() const {
    return context_.lanes(group_.mesh).regather_group(group_.regather_size);
  }
  size_t kept_bytes() const;
  absl::StatusOr<Transfer> GatherShards(std::byte* gathered, Priority priority);
  absl::StatusOr<Transfer> GatherKeptParts(std::byte* gathered, Priority priority);
  // This rank's part of the gather: its master, or the master's cast in its own place of the gathered buffer.
  const void* PlaceOwnShard(std::byte* gathered);
  // Copies this rank's kept part out of a gathered buffer, or back to its place in one.
  void CopyKept(std::byte* gathered, bool out);

  CommContext& context_;
  const GroupSpec& group_;
  ReplicaUpdates& updates_;
  const MasterShard& master_;
  std::vector<PlacedCopy> copy_out_, copy_kept_;  // Without zero copy only.
  PipelineLanes::Parts kept_parts_;               // By rank of the regather group. Null: they lie end to end.
  Buffer gathered_;                               // Without zero copy only, until the copy-out.
  Buffer image_;
  Buffer kept_;  // From KeepPart to the next Gather.
  Transfer gather_;
  CustomAllGather all_gather_;
};

}  // namespace weft
