// Formulas for the cost of a step: collectives, bytes and copies, computed from shapes alone. Tests compare
// the counters of engine, sharding and metrics with them, to the byte.
//
// Let W and G be the bytes of parameters and trained gradients (with padding), S and R the sizes of the shard
// and replicate groups, A the number of microbatches, and K and L the numbers of them that are
// reduce-scattered and all-reduced (see GradientSync). A rank receives, and sends,
//
//   all-gather      in place: 0
//                   groups that stay unsharded between forward and backward (the root's group and the last
//                   1 + prefetch_depth): AW (S-1)/S
//                   groups with regather groups of k: AW (S-1)/S + AW (k-1)/k
//                   all others: 2AW (S-1)/S
//   reduce-scatter  KG (S-1)/S
//   all-reduce      2L G/S (R-1)/R
//
// With the optimizer sharded over replicas, L G/S (R-1)/R more is reduce-scattered instead of the last row,
// and G/S (R-1)/R more is all-gathered in fp32 once a step.
//
// If images are shared, in place or on each node, parameters of a dtype other than fp32 are cast once a step:
// W/S is copied.
//
// Between nodes, a node of a group on n nodes sends on average (n-1)/n of the bytes that the group exchanges.
// With M nodes: 2AW (M-1)/M + KG (M-1)/M for FSDP over all nodes; 2LG (M-1)/M for DDP, and for HSDP with
// shard groups inside nodes.
//
// FlatKind::kRows exchanges rows without padding: W and G are the bytes of the rows, and W/S and G/S those of
// this rank's. Between nodes the engine packs and unpacks the slices of a part that no range of rows holds
// whole: a rank packs those of its own part for each other node, if the part lies in an image, and unpacks
// those of the parts that it receives for its node. A reduce-scatter packs those of the parts of all other
// ranks, if no other rank of the group is on the node. At most one slice for each bound of a range is packed.
//
// Pure.
// Thread safety: values.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/comm/engine_options.h"
#include "weft/sharding/flat_layout.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"

namespace weft {

// Bytes that one collective brings to a rank: its peers' terms of its own part; both phases of an all-reduce
// of `bytes`.
int64_t ReduceScatterBytes(int64_t own_bytes, int ranks);
int64_t AllReduceBytes(int64_t bytes, int ranks);

// Bytes that all ranks of a group on `nodes` nodes hand to the link between nodes in one collective.
// REQUIRES: each node's ranks form an aligned subtree of the group's reduction tree, as equal powers of two
// of consecutive ranks do. Reductions in f16 send the partial sums of several ranks in f32: `bytes` are then
// theirs.
int64_t AllGatherWireBytes(int64_t bytes, int nodes);
int64_t ReduceScatterWireBytes(int64_t bytes, int nodes);

// Bytes that all ranks of a group of `size`, evenly over `nodes` nodes and `domains` share domains, copy from
// other domains of their nodes in one all-gather: into an image for each domain, or for each rank.
int64_t SharedGatherCrossBytes(int64_t bytes, int nodes, int domains);
int64_t PrivateGatherCrossBytes(int64_t bytes, int size, int nodes, int domains);
// The same for reductions: bytes that ranks read from, or write to, other domains of their nodes.
// `sum_bytes`: as `bytes`, but in fp32 if they are bf16 or f16 and a domain has several ranks of the group.
// Small all-reduces, of at most 4 KiB on one node and 64 bytes between nodes, count as 0.
// REQUIRES: each domain's ranks form an aligned subtree of the group's reduction tree: see
// AllGatherWireBytes.
int64_t ReduceScatterCrossBytes(int64_t sum_bytes, int nodes, int domains);
int64_t AllReduceCrossBytes(int64_t bytes, int64_t sum_bytes, int size, int nodes, int domains);

struct StepShape {
  int shard_size = 1;
  int replicate_size = 1;
  int microbatches = 1;
  GradientSync gradient_sync = GradientSync::kReduceScatter;
  // The rank whose costs are computed. Parts of ranks are uneven with frozen parameters, and with the
  // optimizer sharded over replicas if slices do not divide into whole cache lines.
  int shard_rank = 0;
  // Consecutive ranks on each node; divides the shard size or is a multiple of it. 0: one node has all ranks.
  int ranks_per_node = 0;
  // Consecutive ranks of each share domain (CommEngine::share_domains), as ranks_per_node; divides that. 0:
  // each node is a domain.
  int ranks_per_domain = 0;
  // See ChooseResidency. In place nothing is gathered.
  Residency residency = Residency::kPrivate;
  int replicate_rank = 0;  // See shard_rank.
  // Counted by the engine: see packed_bytes.
  int64_t slice_bytes = EngineOptions().slice_bytes;

  int ranks() const { return shard_size * replicate_size; }
  int nodes() const;
  // Number of nodes on which one group, of consecutive ranks, lies.
  int nodes_of_consecutive(int count) const;  // `count` ranks; divides the shard size.
  int shard_group_nodes() const { return nodes_of_consecutive(shard_size); }
  int replicate_group_nodes() const;
  // The same for share domains.
  int domains_of_consecutive(int count) const;
  int replicate_group_domains() const;

  int reduce_scatters() const;  // In a step.
  int all_reduces() const;
};

struct StepCosts {
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t all_gather_bytes = 0;  // Received by the rank.
  int64_t reduce_scatter_bytes = 0;
  int64_t all_reduce_bytes = 0;
  int64_t copied_bytes = 0;        // Written by casts and by copies in and out.
  int64_t wire_bytes = 0;          // Between nodes, of all ranks together.
  int64_t cross_domain_bytes = 0;  // Between share domains of nodes, of all ranks together.
  // Packed and unpacked by the engine on this rank (EngineCounters::copied_bytes). kRows between nodes only.
  // REQUIRES: as AllGatherWireBytes; the last nodes are as full as the first.
  int64_t packed_bytes = 0;

  StepCosts& operator+=(const StepCosts& other);
};

// True if backward gathers group `group` of `groups` again. Groups are numbered in the order of forward, the
// root's first; no block lies in another. See Note [From forward to backward] in
// sharding/model/group_schedule.h.
bool IsGatheredAgain(int group, int groups, const ShardingPolicy& policy);

// Cost of a group's forward, backward and reductions over all microbatches, in the policy's two dtypes and
// one replicate bucket. Only the last backward waits for reductions.
StepCosts CostsOfGroup(const FlatLayout& layout, bool is_gathered_again, const ShardingPolicy& policy,
                       const StepShape& shape);
// Cost of all groups, numbered as for IsGatheredAgain. For groups with a reshard_after_forward_size of their
// own, add up CostsOfGroup of each with its size.
StepCosts CostsOfGroups(absl::Span<const FlatLayout> layouts, const ShardingPolicy& policy,
                        const StepShape& shape);
// Cost of a forward without gradients: the group is gathered once.
StepCosts ForwardCostsOfGroup(const FlatLayout& layout, const ShardingPolicy& policy, const StepShape& shape);

}  // namespace weft
