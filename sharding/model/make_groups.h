// The groups of a model in their memory, whose residency is chosen here.
#pragma once

#include <memory>
#include <vector>

#include <absl/status/statusor.h>

#include "sharding/plan/group_plan.h"
#include "sharding/plan/replicate_buckets.h"
#include "weft/sharding/comm_context.h"
#include "weft/sharding/param_group.h"
#include "weft/sharding/residency.h"

namespace weft {

struct MadeGroups {
  ResidencyChoice residency;
  std::unique_ptr<CommContext> context;
  std::vector<std::unique_ptr<ParamGroup>> groups;  // Loaded, in the order of the plan.
};

// Collective: all ranks of the engine, which agree on the outcome. Errors: as of FullyShard.
absl::StatusOr<MadeGroups> MakeGroups(CommEngine& engine, const std::vector<PlannedGroup>& plan,
                                      const ReplicateBuckets& buckets, ProcessGroup shard_group,
                                      const ShardingPolicy& policy, const ShardLoader& loader);

}  // namespace weft
