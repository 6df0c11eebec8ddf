// What the parts that store a parameter group know of it: its master shard, and its images.
#pragma once

#include <cstddef>
#include <string>

#include "weft/sharding/comm_context.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

class ReplicaUpdates;

struct StoredGroup {
  CommContext& context;
  const std::string& name;
  const FlatLayout& layout;
  ReplicaUpdates& updates;  // What the master is current after.
  DType dtype;              // Of the image.
  bool zero_copy;           // Whether the image is what shards end to end are.

  bool casts() const { return dtype != DType::kF32; }
  bool alone() const { return context.shard_group().size() == 1; }
  size_t shard_bytes(DType of) const { return static_cast<size_t>(layout.shard_elements()) * SizeOf(of); }
  size_t gathered_bytes() const { return static_cast<size_t>(layout.gathered_elements()) * SizeOf(dtype); }
  size_t image_bytes() const { return static_cast<size_t>(layout.image_elements()) * SizeOf(dtype); }
  // This rank's part of a gathered buffer.
  std::byte* OwnRange(std::byte* gathered) const {
    return gathered + static_cast<size_t>(context.shard_group().group_rank) * shard_bytes(dtype);
  }
};

}  // namespace weft
