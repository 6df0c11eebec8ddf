// This rank's master shard of a parameter group, and its cast to the dtype that the group is gathered in.
//
// Lifetime: context and group must outlive the shard.
#pragma once

#include <cstddef>

#include <absl/status/statusor.h>

#include "sharding/pipeline/comm_context.h"
#include "sharding/plan/group_spec.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

class MasterShard {
 public:
  // A shard in memory of its own, end to end, filled with zeros. Errors: kResourceExhausted.
  static absl::StatusOr<MasterShard> Create(CommContext& context, const GroupSpec& group);
  // A shard in its place of an image in the master's dtype, which the caller holds.
  static MasterShard InImage(CommContext& context, const GroupSpec& group, std::byte* image);

  // The shard's elements end to end. With is_in_ranges(): the image, in which they lie in ranges.
  std::byte* data() const { return data_; }
  bool is_in_ranges() const { return is_in_ranges_; }
  // The elements of a piece of this rank.
  std::byte* At(const ShardPiece& piece) const;

  // Writes the shard, end to end, to `target` in the image's dtype. REQUIRES: the master is current and not
  // in ranges.
  void CastTo(std::byte* target) const;
  // Writes the shard to its place in a gathered buffer or an image. REQUIRES: as CastTo.
  void CastInto(std::byte* gathered) const;
  // The place of a piece in a gathered buffer or an image of the image's dtype, where CastInto casts it to.
  std::byte* CastPlaceOf(const ShardPiece& piece, std::byte* gathered) const;
  // Counts a cast of the shard, as CastTo and CastInto do.
  void CountCast() const;

 private:
  MasterShard(CommContext& context, const GroupSpec& group) : context_(context), group_(group) {}
  int rank() const { return context_.lanes(group_.mesh).shard_group().group_rank; }

  CommContext& context_;
  const GroupSpec& group_;
  Buffer memory_;
  std::byte* data_ = nullptr;
  bool is_in_ranges_ = false;
};

}  // namespace weft
