#include "sharding/group/master_shard.h"

#include <cstring>

#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {

absl::StatusOr<MasterShard> MasterShard::Create(CommContext& context, const GroupSpec& group) {
  MasterShard shard(context, group);
  WEFT_ASSIGN_OR_RETURN(shard.memory_, context.memory().AcquireShard(group.master_bytes(shard.rank())));
  shard.data_ = shard.memory_.data();
  std::memset(shard.data_, 0, shard.memory_.bytes());
  return shard;
}

MasterShard MasterShard::InImage(CommContext& context, const GroupSpec& group, std::byte* image) {
  MasterShard shard(context, group);
  shard.is_in_ranges_ = group.image_parts != nullptr;
  shard.data_ = shard.is_in_ranges_ ? image : group.RangeOf(shard.rank(), image);
  return shard;
}

std::byte* MasterShard::At(const ShardPiece& piece) const {
  const int64_t offset =
      is_in_ranges_ ? group_.layout.image_offset(piece.parameter) + piece.start : piece.shard_offset;
  return data_ + BytesOf(offset, group_.dtypes.master);
}

void MasterShard::CastTo(std::byte* target) const {
  const DType dtype = group_.dtypes.param;
  ConvertRun(data_, group_.dtypes.master, target, dtype, group_.layout.shard_elements(rank()));
  CountCast();
}

void MasterShard::CastInto(std::byte* gathered) const {
  if (group_.image_parts == nullptr) {
    CastTo(group_.RangeOf(rank(), gathered));
    return;
  }
  const DType dtype = group_.dtypes.param;
  for (const PartRanges::PlacedRange& placed : group_.image_parts->part(rank())) {
    ConvertRun(data_ + BytesOf(placed.place, group_.dtypes.master), group_.dtypes.master,
               gathered + BytesOf(placed.range.begin, dtype), dtype, placed.range.count);
  }
  CountCast();
}

std::byte* MasterShard::CastPlaceOf(const ShardPiece& piece, std::byte* gathered) const {
  const int64_t element = group_.image_parts == nullptr
                              ? group_.layout.gathered_offset(rank()) + piece.shard_offset
                              : group_.layout.image_offset(piece.parameter) + piece.start;
  return gathered + BytesOf(element, group_.dtypes.param);
}

void MasterShard::CountCast() const {
  context_.state().CountCopy(static_cast<int64_t>(group_.shard_bytes(rank(), group_.dtypes.param)));
}

}  // namespace weft
