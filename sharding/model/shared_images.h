// Node memory of images that the ranks of a shard group share.
//
// Thread safety: none. Collective: AllocateSharedImages, by all ranks.
#pragma once

#include <vector>

#include <absl/status/statusor.h>

#include "sharding/plan/execution_order.h"
#include "sharding/plan/group_spec.h"
#include "weft/comm/comm_engine.h"
#include "weft/memory/shared_block.h"
#include "weft/mesh/process_group.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"

namespace weft {

// Empty blocks if images are private.
struct SharedImages {
  std::vector<SharedBlock> in_place;  // One for each group, shared by the ranks of the shard group.
  SharedBlock region;                 // For all groups, shared by the shard group's ranks in a domain.
  int region_holders = 0;
};

// Allocates the images of `residency`. If node memory has no room for shared ones and the policy is kAuto,
// images become private, which `residency` then says. `order`: ModuleOrder of the groups.
// Errors: kResourceExhausted (node memory has no room, and the policy is not kAuto).
absl::StatusOr<SharedImages> AllocateSharedImages(CommEngine& engine, const ProcessGroup& shard_group,
                                                  const std::vector<GroupSpec>& specs,
                                                  const std::vector<PassEvent>& order,
                                                  const ShardingPolicy& policy, ResidencyChoice& residency);

}  // namespace weft
