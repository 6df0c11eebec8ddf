#include "sharding/plan/mesh_groups.h"

#include <string>
#include <string_view>
#include <vector>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

using Axes = std::vector<std::string_view>;

// The tree over replicas continues the tree over a shard group only if ranks are replicate-major.
absl::Status CheckAxes(const DeviceMesh& mesh) {
  const Axes expected = {"replicate", "shard", "context"};
  size_t place = 0;
  for (const MeshAxis& axis : mesh.axes()) {
    while (place < expected.size() && expected[place] != axis.name) ++place;
    if (place++ >= expected.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh ", mesh.ToString(),
                       ": parameters are sharded over the axes replicate, shard and context, in ",
                       "this order, and no others; axis '", axis.name, "' does not fit"));
    }
  }
  return absl::OkStatus();
}

// This rank's group along the axes that the mesh has; named after the first axis if it has none of them.
absl::StatusOr<ProcessGroup> GroupAlong(const DeviceMesh& mesh, const Axes& axes, int rank) {
  Axes present;
  for (const std::string_view axis : axes) {
    if (mesh.AxisSize(axis).ok()) present.push_back(axis);
  }
  if (present.empty()) return ProcessGroup{std::string(axes.front()), {rank}, 0};
  return mesh.Group(present, rank);
}

}  // namespace

absl::StatusOr<MeshGroups> GroupsOfMesh(const DeviceMesh& mesh, int world_size, int rank) {
  WEFT_RETURN_IF_ERROR(CheckAxes(mesh));
  if (mesh.size() != world_size) {
    return absl::InvalidArgumentError(absl::StrCat("mesh ", mesh.ToString(), " has ", mesh.size(),
                                                   " ranks, but the engine connects ", world_size));
  }
  MeshGroups groups;
  WEFT_ASSIGN_OR_RETURN(groups.shard, GroupAlong(mesh, {"shard", "context"}, rank));
  WEFT_ASSIGN_OR_RETURN(groups.replicate, GroupAlong(mesh, {"replicate"}, rank));
  return groups;
}

}  // namespace weft
