#include "sharding/group/master_shard.h"

#include <cstring>
#include <utility>

#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {

absl::StatusOr<MasterShard> MasterShard::Create(const StoredGroup& group) {
  WEFT_ASSIGN_OR_RETURN(Buffer memory, group.context.AcquireShard(group.shard_bytes(DType::kF32)));
  return MasterShard(group, std::move(memory));
}

MasterShard::MasterShard(const StoredGroup& group, Buffer memory)
    : group_(group), memory_(std::move(memory)), data_(memory_.data()) {
  if (memory_) std::memset(memory_.data(), 0, memory_.bytes());
}

void MasterShard::CastTo(std::byte* target) const {
  ConvertRun(data_, DType::kF32, target, group_.dtype, group_.layout.shard_elements());
  group_.context.CountCopy(static_cast<int64_t>(group_.shard_bytes(group_.dtype)));
}

}  // namespace weft
