// What a step must cost: collectives, bytes and copies of one rank, computed from shapes alone. Tests hold
// the counters of engine and context against these, to the byte.
//
// With W and G the bytes of parameters and gradients (padding included), S and R the sizes of the shard and
// replicate groups and A microbatches, reduced once a step:
//   all-gather      2AW (S-1)/S; AW (S-1)/S for groups that are not resharded after forward
//   reduce-scatter  G (S-1)/S
//   all-reduce      2 G/S (R-1)/R
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/sharding/flat_layout.h"
#include "weft/sharding/policy.h"

namespace weft {

struct StepShape {
  int shard_size = 1;
  int replicate_size = 1;
  int microbatches = 1;
};

struct StepCosts {
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t all_gather_bytes = 0;  // Brought to a rank; sent by it as well.
  int64_t reduce_scatter_bytes = 0;
  int64_t all_reduce_bytes = 0;
  int64_t copied_bytes = 0;  // Written by casts and by copies in and out.

  StepCosts& operator+=(const StepCosts& other);
};

// Forward and backward of one group, `is_root` or not, and its reduction, in one replicate bucket.
StepCosts CostsOfGroup(const FlatLayout& layout, bool is_root, const ShardingPolicy& policy,
                       const StepShape& shape);

}  // namespace weft
