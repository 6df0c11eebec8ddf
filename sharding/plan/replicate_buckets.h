// Replicate buckets: the process groups over which gradients are all-reduced, and the parameters of each.
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
  std::vector<ProcessGroup> groups;  // By bucket. The first is the mesh's replicate group.
  absl::flat_hash_map<const Parameter*, int> bucket_of;

  // The bucket of each of these parameters, for SpecifyGroup.
  std::vector<int> BucketsOf(const std::vector<std::shared_ptr<Parameter>>& parameters) const;
};

// `shard` and `replicate`: this rank's groups of the mesh.
// Errors: kInvalidArgument (a replicate group without this rank, or with another rank of its shard group;
// names the parameter).
absl::StatusOr<ReplicateBuckets> PlanReplicateBuckets(
    const std::vector<std::shared_ptr<Parameter>>& parameters, const ShardingPolicy& policy,
    const ProcessGroup& shard, const ProcessGroup& replicate);

}  // namespace weft
