// Bounds on the node memory of a training step, computed from shapes alone.
//
// Note [Slowest schedule]
// Problem: how much a rank holds at once depends on when its peers finish operations.
// Rule: the bounds are the peaks of a step in which no operation ends before this rank must wait for it. Then
//   an image is given back when its group is resharded, and gradients when max_reduce_scatters or
//   max_all_reduces asks for it.
// Why it suffices: an operation that ends earlier only frees memory earlier.
//
// Pure. Thread safety: values.
#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/sharding/byte_formulas.h"
#include "weft/sharding/counters.h"
#include "weft/sharding/group_members.h"
#include "weft/sharding/policy.h"

namespace weft {

// The largest peaks that a rank of these groups can have: see Note [Slowest schedule]. Groups are in the
// order of forward, the root's first. `updates_in_backward`: see ShardedModel::BeginUpdatesInBackward.
// Left out: scalars of a few hundred bytes, exchanges of whole parameters, and delta encoding.
// REQUIRES: no dtypes_of, one mesh and one replicate bucket, no reshard_after_forward_size and no
//   schedule rules, hooks or collectives of a caller.
// Errors: kInvalidArgument (groups that cannot be sharded as the policy says).
absl::StatusOr<MemoryPeaks> LargestPeaks(absl::Span<const GroupMembers> groups, const ShardingPolicy& policy,
                                         const StepShape& shape, bool updates_in_backward);

}  // namespace weft
