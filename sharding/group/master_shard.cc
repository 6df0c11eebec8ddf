#include "sharding/group/master_shard.h"

#include <cstring>
#include <utility>

#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {

absl::StatusOr<MasterShard> MasterShard::Create(CommContext& context, const GroupSpec& group) {
  const int rank = context.lanes().shard_group().group_rank;
  WEFT_ASSIGN_OR_RETURN(Buffer memory, context.memory().AcquireShard(group.shard_bytes(rank, DType::kF32)));
  return MasterShard(context, group, std::move(memory));
}

MasterShard::MasterShard(CommContext& context, const GroupSpec& group, Buffer memory)
    : context_(context), group_(group), memory_(std::move(memory)), data_(memory_.data()) {
  if (memory_) std::memset(memory_.data(), 0, memory_.bytes());
}

void MasterShard::CastTo(std::byte* target) const {
  const DType dtype = group_.dtypes.param;
  const int rank = context_.lanes().shard_group().group_rank;
  ConvertRun(data_, DType::kF32, target, dtype, group_.layout.shard_elements(rank));
  context_.state().CountCopy(static_cast<int64_t>(group_.shard_bytes(rank, dtype)));
}

}  // namespace weft
