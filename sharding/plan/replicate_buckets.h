// Which process groups the gradients of a model are all-reduced over, and which parameters over each.
//
// Pure.
#pragma once

#include <memory>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include "weft/mesh/process_group.h"
#include "weft/nn/parameter.h"
#include "weft/sharding/policy.h"

namespace weft {

struct ReplicateBuckets {
  std::vector<ProcessGroup> groups;  // By bucket; the first is that of the mesh.
  absl::flat_hash_map<const Parameter*, int> bucket_of;

  // One for each of these parameters, as ParamGroup::Create takes them.
  std::vector<int> BucketsOf(const std::vector<std::shared_ptr<Parameter>>& parameters) const;
};

// `shard` and `replicate`: the caller's groups of the mesh. Errors: kInvalidArgument (a group without this
// rank, or with another rank of its shard group, names the parameter).
absl::StatusOr<ReplicateBuckets> PlanReplicateBuckets(
    const std::vector<std::shared_ptr<Parameter>>& parameters, const ShardingPolicy& policy,
    const ProcessGroup& shard, const ProcessGroup& replicate);

}  // namespace weft
