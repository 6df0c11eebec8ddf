// Size of the region that the ranks of a shard group on one node share for images.
//
// Pure. See Note [Images shared on a node] in sharding/pipeline/image_region.h.
#pragma once

#include <cstddef>

#include <absl/types/span.h>

#include "sharding/plan/execution_order.h"
#include "weft/sharding/policy.h"

namespace weft {

// Bytes of a region that holds every image of an evaluation pass, or of a training step, in the order of
// modules. `image_bytes`: by group.
size_t PlanRegionBytes(absl::Span<const PassEvent> module_order, absl::Span<const size_t> image_bytes,
                       const ShardingPolicy& policy);

}  // namespace weft
