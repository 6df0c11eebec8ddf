// This rank's fp32 shard of a parameter group, and its cast to the dtype that the group is gathered in.
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
  // A shard in memory of its own, filled with zeros. Errors: kResourceExhausted.
  static absl::StatusOr<MasterShard> Create(CommContext& context, const GroupSpec& group);
  // A shard at a place of memory that the caller holds.
  MasterShard(CommContext& context, const GroupSpec& group, std::byte* place)
      : context_(context), group_(group), data_(place) {}

  std::byte* data() const { return data_; }
  // Writes the shard to `target` in the image's dtype. REQUIRES: the master is current.
  void CastTo(std::byte* target) const;

 private:
  MasterShard(CommContext& context, const GroupSpec& group, Buffer memory);

  CommContext& context_;
  const GroupSpec& group_;
  Buffer memory_;
  std::byte* data_;
};

}  // namespace weft
