// Node memory into which the ranks of a shard group in one share domain gather their images together.
//
// Note [Images shared on a node]
// Problem: where a shard group spans share domains (nodes, or NUMA nodes), private images keep one copy of
// the gathered parameters for each rank, and every rank of the domain writes it. Rule: the ranks of a shard
// group in a domain share one region. Each image is gathered once into a range of it
// (CommEngine::AllGatherShared): every part is written once a domain, by its owner or by the rank that
// receives or copies it. A rank that is alone in its domain has a region too, because all ranks must submit
// the same operation. Every rank runs the same allocator over the region: a gather takes a range, a reshard
// gives it back. Why it suffices: all ranks gather and reshard in one order (Note [One order on all ranks]),
// so they agree on every range without communication; if they do not, the engine reports outputs at different
// places. Reusing a range needs no barrier: nothing is written to it before every rank of the node has
// submitted the gather. A rank submits it after the gather that filled the range before is *ready*, and after
// it has given up what that gather brought.
//
// The region is as large as the order of modules needs (PlanRegionBytes). An image that does not fit, in an
// order that was not planned, is gathered privately on all ranks alike: ShardingCounters::unshared_images.
#pragma once

#include <utility>

#include "sharding/plan/range_allocator.h"
#include "weft/memory/shared_block.h"

namespace weft {

struct ImageRegion {
  explicit ImageRegion(SharedBlock memory) : block(std::move(memory)), ranges(block.bytes()) {}

  SharedBlock block;
  RangeAllocator ranges;
};

}  // namespace weft
