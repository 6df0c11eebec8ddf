// Description of one parameter group: its parameters, dtypes and flat layout. It has no memory.
//
// Pure. Thread safety: a value.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/comm/part_ranges.h"
#include "weft/nn/parameter.h"
#include "weft/sharding/flat_layout.h"
#include "weft/sharding/group_members.h"
#include "weft/sharding/policy.h"

namespace weft {

struct GroupSpec {
  GroupMembers members;
  ParameterDTypes dtypes;
  FlatLayout layout;
  // kRows: the parts of the ranks in the image, and in the gradient image, for the engine. Null: they lie end
  // to end in the collective's buffer.
  std::shared_ptr<const PartRanges> image_parts = nullptr;
  std::shared_ptr<const PartRanges> gradient_parts = nullptr;

  // Ranks of the regather group, of which each keeps a part of the image between forward and backward: see
  // ShardingPolicy::reshard_after_forward_size. 0: none does.
  int regather_size = 0;
  int mesh = 0;  // Number of the group's mesh in the context: see CommContext::lanes.

  const std::string& name() const { return members.name; }
  const std::vector<std::shared_ptr<Parameter>>& parameters() const { return members.parameters; }

  // True if collectives use the image and the gradient image.
  bool is_zero_copy() const { return IsZeroCopy(layout.kind()); }
  // True if the image's dtype differs from the master's.
  bool is_cast() const { return dtypes.param != dtypes.master; }
  // True if the shard group has one rank.
  bool is_alone() const { return layout.shard_size() == 1; }

  size_t shard_bytes(int shard_rank, DType dtype) const {
    return static_cast<size_t>(BytesOf(layout.shard_elements(shard_rank), dtype));
  }
  size_t master_bytes(int shard_rank) const { return shard_bytes(shard_rank, dtypes.master); }
  size_t gathered_bytes() const {
    return static_cast<size_t>(BytesOf(layout.gathered_elements(), dtypes.param));
  }
  size_t image_bytes() const { return static_cast<size_t>(BytesOf(layout.image_elements(), dtypes.param)); }
  // First byte of the range of a gathered buffer that `shard_rank` owns. REQUIRES: parts lie end to end.
  std::byte* RangeOf(int shard_rank, std::byte* gathered) const {
    return gathered + BytesOf(layout.gathered_offset(shard_rank), dtypes.param);
  }
};

// Dtypes of the parameters of a group, which share buffers and collectives.
// Errors: kInvalidArgument (a dtype that is not allowed; parameters with different original, all-gather,
// reduce, master or gradient dtypes: names the group, the kind of dtype, and the parameters).
absl::StatusOr<ParameterDTypes> AgreeOnDTypes(const std::string& group,
                                              const std::vector<std::shared_ptr<Parameter>>& parameters,
                                              const ShardingPolicy& policy);

// `buckets`: the replicate bucket of each parameter, below `bucket_count`; empty: bucket 0 for all.
// Errors: kInvalidArgument (a parameter listed twice; a shard dim out of range; parameters of one group whose
// original, all-gather, reduce, master or gradient dtypes differ; f64 masters with
// the optimizer sharded over replicas; buckets of another count; a reshard_after_forward_size that does not
// divide the shard group, or of a group that is not resharded after forward).
absl::StatusOr<GroupSpec> SpecifyGroup(GroupMembers members, const ShardingPolicy& policy, int shard_size,
                                       const std::vector<int>& buckets, int bucket_count);

}  // namespace weft
