// The node memory in which the ranks of a shard group that share a node have their images together, and how
// large it must be.
//
// Note [Images shared on a node]
// Where a shard group spans nodes, its ranks on one node hold one region, and each image is gathered into a
// range of it once for all of them (CommEngine::AllGatherShared): every part is written once a node, by its
// owner or by the rank that receives it. A rank that is alone on its node holds a region too, as all ranks
// must submit the same operation.
//
// Every rank runs the same allocator over the region: gathering takes a range, resharding gives it back. All
// ranks gather and reshard in one order, which is that of the schedule (Note [One order on all ranks]), so
// they agree on every range without asking; if they do not, the engine finds outputs at different places, and
// says so. No fence is needed where a range is used again: nothing is written to it before every rank of the
// node has submitted the gather, and a rank submits it after it has given up whatever lay there.
//
// The region is as large as a schedule needs that follows the order of modules. An image that does not fit,
// in an order that nobody foresaw, is gathered as a private one, by all ranks alike:
// ShardingCounters::unshared_images.
#pragma once

#include <cstddef>
#include <utility>

#include <absl/types/span.h>

#include "sharding/plan/execution_order.h"
#include "sharding/plan/range_allocator.h"
#include "weft/memory/shared_block.h"
#include "weft/sharding/policy.h"

namespace weft {

struct ImageRegion {
  explicit ImageRegion(SharedBlock memory) : block(std::move(memory)), ranges(block.bytes()) {}

  SharedBlock block;
  RangeAllocator ranges;
};

// Of a region for images of these sizes, by group: what an evaluation takes, or a training step, one after
// the other. Pure.
size_t PlanRegionBytes(absl::Span<const PassEvent> module_order, absl::Span<const size_t> image_bytes,
                       const ShardingPolicy& policy);

}  // namespace weft
