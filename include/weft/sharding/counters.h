// Counters and memory peaks of one sharded model on one rank.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// Work done since the model was sharded. The counters never decrease: take differences.
struct ShardingCounters {
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t copied_bytes = 0;     // Written by casts and by copies in and out, outside of collectives.
  int64_t unshared_images = 0;  // Images gathered privately because the node's shared region was full.
};

// Largest node memory in use at once, by purpose.
struct MemoryPeaks {
  size_t image_bytes = 0;     // Gathered parameters, including images that peers still read.
  size_t gradient_bytes = 0;  // Full gradients.
  size_t shard_bytes = 0;     // Masters, their reduced gradients, partial sums.
};

}  // namespace weft
