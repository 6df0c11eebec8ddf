// Image of a parameter group in which all ranks of the shard group, on one node, keep their shards.
//
// An unshard moves nothing: it waits until peers have written their ranges. In the masters' dtype the
// image is the master shards, each in its own place. In another dtype each rank keeps its master privately
// and casts it into its place once an epoch. See Note [Shards in place].
#pragma once

#include <cstdint>
#include <memory>

#include "sharding/group/master_shard.h"
#include "sharding/group/shared_image.h"
#include "sharding/pipeline/comm_context.h"
#include "sharding/pipeline/replica_updates.h"
#include "weft/memory/shared_block.h"

namespace weft {

class InPlaceImage final : public SharedImage {
 public:
  // `block`: memory of the image, shared by all ranks of the shard group. `master`: this rank's shard, in the
  // image if the two have one dtype.
  InPlaceImage(CommContext& context, const GroupSpec& group, ReplicaUpdates& updates,
               const MasterShard& master, SharedBlock block);
  ~InPlaceImage() override;

  std::byte* data() const override { return block_.data(); }
  void BeginWriting() override { cast_epoch_ = 0; }
  absl::Status EndWriting() override;
  std::byte* PlaceForCast(const ShardPiece& piece) override;
  void MarkCast() override;
  absl::StatusOr<bool> Gather(Priority priority) override;
  absl::Status Await() override;
  void Drop() override { is_read_ = false; }
  void ResetAfterError() override;

 private:
  absl::Status CastOnce();
  // This rank's share of the image, which all ranks of the shard group hold.
  int64_t ResidentBytes() const;

  CommContext& context_;
  const GroupSpec& group_;
  ReplicaUpdates& updates_;
  const MasterShard& master_;
  const SharedBlock block_;
  bool is_read_ = false;           // From Gather to Drop.
  uint64_t cast_epoch_ = 0;        // Epoch of the cast; 0 if the master may have been written since.
  uint64_t seen_epoch_ = 0;        // Epoch of the last WrittenBarrier.
  std::shared_ptr<Work> written_;  // Barrier to wait for before reading; null once waited for.
};

}  // namespace weft
