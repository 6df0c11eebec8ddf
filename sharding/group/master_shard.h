// This rank's shard of a parameter group in fp32, and its casts to the dtype that the group is gathered in.
//
// Lifetime: what StoredGroup names must outlive the shard.
#pragma once

#include <cstddef>

#include <absl/status/statusor.h>

#include "sharding/group/stored_group.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

class MasterShard {
 public:
  // In memory of its own, zero. Errors: kResourceExhausted.
  static absl::StatusOr<MasterShard> Create(const StoredGroup& group);
  // In memory that somebody else holds.
  MasterShard(const StoredGroup& group, std::byte* place) : group_(group), data_(place) {}

  std::byte* data() const { return data_; }
  // Puts it there in the dtype of the image. The master must be current.
  void CastTo(std::byte* target) const;

 private:
  MasterShard(const StoredGroup& group, Buffer memory);

  StoredGroup group_;
  Buffer memory_;
  std::byte* data_;
};

}  // namespace weft
