// Process groups of a mesh over which parameters are sharded and replicated.
//
// Axes, outermost first, each optional: `replicate`, `shard`, `context`. The ranks of shard and context
// together form one shard group: ranks that share a sequence share its parameters.
//
// Pure.
#pragma once

#include <absl/status/statusor.h>

#include "weft/mesh/device_mesh.h"
#include "weft/mesh/process_group.h"

namespace weft {

struct MeshGroups {
  ProcessGroup shard;
  ProcessGroup replicate;
};

// The groups of `rank`. A group has one rank if the mesh has none of its axes.
// Errors: kInvalidArgument (another axis, or another order of axes; a mesh whose size is not `world_size`).
absl::StatusOr<MeshGroups> GroupsOfMesh(const DeviceMesh& mesh, int world_size, int rank);

}  // namespace weft
