// Memory that the images of a training step take at once.
//
// Pure.
#pragma once

#include <cstddef>

#include <absl/types/span.h>

#include "sharding/plan/execution_order.h"
#include "weft/sharding/policy.h"

namespace weft {

// Bytes of a region that holds every image of an evaluation pass, or of a training step, in the order of
// modules. `image_bytes`: by group. See Note [Images shared on a node] in sharding/pipeline/image_region.h.
size_t PlanRegionBytes(absl::Span<const PassEvent> module_order, absl::Span<const size_t> image_bytes,
                       const ShardingPolicy& policy);

// The largest sum of private images in use at once in these passes. `gathered_bytes`: by group, of a buffer
// beside the image from the start of its gather to the end of the wait for it.
size_t PlanImageBytes(absl::Span<const PassEvent> module_order, absl::Span<const size_t> image_bytes,
                      absl::Span<const size_t> gathered_bytes, const ShardingPolicy& policy);

}  // namespace weft
