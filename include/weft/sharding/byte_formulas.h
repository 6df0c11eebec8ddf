// What a step must cost: collectives, bytes and copies, computed from shapes alone. Tests hold the counters
// of engine, context and metrics against these, to the byte.
//
// With W and G the bytes of parameters and trained gradients (padding included), S and R the sizes of the
// shard and replicate groups, A microbatches, and K and L of them that are reduce-scattered and all-reduced
// (see GradientSync), a rank receives, and sends,
//
//   all-gather      0 in place; 2AW (S-1)/S; AW (S-1)/S for groups that stay unsharded between forward and
//                   backward: the root's, and the last 1 + prefetch_depth; AW (S-1)/S and AW (k-1)/k for
//                   those that are resharded to k neighbours
//   reduce-scatter  KG (S-1)/S
//   all-reduce      2L G/S (R-1)/R
//
// With the optimizer sharded over replicas, in place of the last row, L G/S (R-1)/R more reduce-scattered,
// and once a step G/S (R-1)/R more all-gathered, in fp32.
//
// Where images are shared, in place or on each node, parameters that are computed with in a narrower dtype
// are cast once a step: W/S copied.
//
// Between M nodes a node sends, in the mean, n-1 of n parts of what its groups exchange, n being the
// nodes that a group lies on: 2AW (M-1)/M + KG (M-1)/M for FSDP over all nodes, 2LG (M-1)/M for HSDP with the
// shard group inside a node, and for DDP.
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/sharding/flat_layout.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"

namespace weft {

// What one collective brings to a rank of a group: its peers' equal parts of `bytes`; what they have for its
// own part; both halves of an all-reduce of `bytes`.
int64_t AllGatherBytes(int64_t bytes, int ranks);
int64_t ReduceScatterBytes(int64_t own_bytes, int ranks);
int64_t AllReduceBytes(int64_t bytes, int ranks);

// What one collective hands to the link between nodes, by all ranks of a group that lies on `nodes` nodes.
// The nodes' ranks form aligned subtrees of the group's reduction tree: equal powers of two of neighbours do.
// Not for reductions in f16, whose partial sums travel in f32.
int64_t AllGatherWireBytes(int64_t bytes, int nodes);
int64_t ReduceScatterWireBytes(int64_t bytes, int nodes);
int64_t AllReduceWireBytes(int64_t bytes, int nodes);

struct StepShape {
  int shard_size = 1;
  int replicate_size = 1;
  int microbatches = 1;
  GradientSync gradient_sync = GradientSync::kReduceScatter;
  // Whose costs are asked for: frozen parameters, and with the optimizer sharded over replicas what does not
  // divide into as many cache lines for each, make the parts of ranks uneven.
  int shard_rank = 0;
  // Neighbouring ranks on one node; it divides, or is a multiple of, the shard size. 0: one node has all.
  int ranks_per_node = 0;
  // What a sharded model chose, see ChooseResidency. In place nothing is gathered.
  Residency residency = Residency::kPrivate;
  int replicate_rank = 0;  // See shard_rank.

  int ranks() const { return shard_size * replicate_size; }
  int nodes() const;
  // On how many of them one group lies.
  int nodes_of_neighbours(int count) const;  // Of a part of a shard group whose size `count` divides it.
  int shard_group_nodes() const { return nodes_of_neighbours(shard_size); }
  int replicate_group_nodes() const;

  int reduce_scatters() const;  // A step.
  int all_reduces() const;
};

struct StepCosts {
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t all_gather_bytes = 0;  // Brought to the rank.
  int64_t reduce_scatter_bytes = 0;
  int64_t all_reduce_bytes = 0;
  int64_t copied_bytes = 0;  // Written by casts and by copies in and out.
  int64_t wire_bytes = 0;    // Between nodes, of all ranks together.

  StepCosts& operator+=(const StepCosts& other);
};

// Whether backward gathers a group again, number `group` of `groups`, which are the root's and then the
// blocks' in the order of forward, none of which lies in another. See Note [From forward to backward] in
// sharding/module_hooks.h.
bool IsGatheredAgain(int group, int groups, const ShardingPolicy& policy);

// Forward and backward of one group in the policy's two dtypes, for all microbatches, of which only the last
// backward is waited for, and its reductions, in one replicate bucket.
StepCosts CostsOfGroup(const FlatLayout& layout, bool is_gathered_again, const ShardingPolicy& policy,
                       const StepShape& shape);
// The same of all groups, as IsGatheredAgain numbers them.
StepCosts CostsOfGroups(absl::Span<const FlatLayout> layouts, const ShardingPolicy& policy,
                        const StepShape& shape);
// A forward without gradients: each group is gathered once.
StepCosts ForwardCostsOfGroup(const FlatLayout& layout, const ShardingPolicy& policy, const StepShape& shape);

}  // namespace weft
