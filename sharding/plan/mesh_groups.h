// The process groups of a mesh that parameters are sharded and replicated over.
//
// Axes, outermost first, each of which may be missing: `replicate`, `shard`, `context`. The ranks of shard
// and context together are one shard group: those that share a sequence share the parameters as well.
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

// As `rank` sees them; of one rank where the mesh has no such axes. Errors: kInvalidArgument (another axis,
// or axes in another order; a mesh of another size than `world_size`).
absl::StatusOr<MeshGroups> GroupsOfMesh(const DeviceMesh& mesh, int world_size, int rank);

}  // namespace weft
