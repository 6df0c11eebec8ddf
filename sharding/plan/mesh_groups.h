// Process groups of a mesh over which parameters are sharded and replicated.
//
// Axes, outermost first, each optional: `replicate`, `shard`, `context`. The ranks of shard and context
// together form one shard group: ranks that share a sequence share its parameters.
//
// Pure.
#pragma once

#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/mesh/device_mesh.h"
#include "weft/mesh/process_group.h"
#include "weft/sharding/group_members.h"
#include "weft/sharding/policy.h"

namespace weft {

struct MeshGroups {
  ProcessGroup shard;
  ProcessGroup replicate;
};

// Meshes of the parameter groups of a model.
struct GroupMeshes {
  std::vector<MeshGroups> meshes;  // This rank's process groups. The first are those of the model's mesh.
  std::vector<int> mesh_of_group;  // For each parameter group an index of `meshes`.
};

// Errors: those of GroupsOfMesh, for the model's mesh and those of policy.mesh_of (names the parameter);
// kInvalidArgument (parameters of one group have different meshes; names two of them).
absl::StatusOr<GroupMeshes> PlanGroupMeshes(absl::Span<const GroupMembers> groups, const DeviceMesh& mesh,
                                            const ShardingPolicy& policy, int world_size, int rank);

// The groups of `rank`. A group has one rank if the mesh has none of its axes.
// Errors: kInvalidArgument (another axis, or another order of axes; a mesh whose size is not `world_size`).
absl::StatusOr<MeshGroups> GroupsOfMesh(const DeviceMesh& mesh, int world_size, int rank);

}  // namespace weft
