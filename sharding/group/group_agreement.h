// Agreement of ranks on the layouts of their parameter groups, and on options of sharding.
//
// Note [Layouts alike]
// Problem: dims of shards, replicate groups and frozen parameters come from functions and flags of each rank.
// Collectives compare names and lengths only. Ranks whose layouts differ in other ways would exchange
// elements of different parameters, and compute with them. Ranks whose options differ would submit different
// collectives, and wait for each other.
// Rule: ranks that share a shard group have the same groups with the same parameters, dtypes, layout and
// schedule. Ranks of a replicate group reduce the same elements of the same parameters and groups with the
// same dtypes, and have the same place in their shard groups. All ranks have as many groups, with as many
// parameters if they agree on the used ones, and the same options of OptionsOf. Apart from these, a parameter
// that is not replicated may have another name and shape on each replica. With FlatKind::kContiguous its size
// then shifts the ranges of the parameters behind it, so that replicas mostly hold other elements of these.
// Why it suffices: a layout is a function of what is compared in a shard group (FlatLayout::Make), and each
// collective of parameters or gradients runs over one of these groups.
#pragma once

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

#include "sharding/plan/group_spec.h"
#include "sharding/plan/mesh_groups.h"
#include "sharding/plan/replicate_buckets.h"
#include "weft/mesh/bootstrap.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"

namespace weft {

// Groups, meshes and options from which this rank makes its sharded groups.
struct ShardingPlan {
  ShardingPolicy policy;
  GroupMeshes meshes;
  std::vector<ReplicateBuckets> buckets;  // By mesh.
  std::vector<GroupSpec> specs;
  ResidencyChoice residency;
};

// OK if `own` is OK on all ranks, and their layouts and options are alike: Note [Layouts alike].
// Errors: kInvalidArgument (names the first option or group that differs, two ranks and what differs); those
// of AgreeOnStatus. Collective: all ranks of `bootstrap`.
absl::Status AgreeOnPlan(Bootstrap& bootstrap, const absl::StatusOr<ShardingPlan>& own,
                         absl::Duration timeout);

}  // namespace weft
