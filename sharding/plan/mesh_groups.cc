#include "sharding/plan/mesh_groups.h"

#include <algorithm>
#include <memory>
#include <optional>
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

// Meshes of the same ranks and axes differ in the size of their shard groups alone.
int IndexOf(const MeshGroups& groups, std::vector<MeshGroups>& meshes) {
  const auto same = std::find_if(meshes.begin(), meshes.end(), [&groups](const MeshGroups& known) {
    return known.shard.size() == groups.shard.size();
  });
  const auto index = static_cast<int>(same - meshes.begin());
  if (same == meshes.end()) meshes.push_back(groups);
  return index;
}

}  // namespace

absl::StatusOr<GroupMeshes> PlanGroupMeshes(absl::Span<const GroupMembers> groups, const DeviceMesh& mesh,
                                            const ShardingPolicy& policy, int world_size, int rank) {
  GroupMeshes planned;
  WEFT_ASSIGN_OR_RETURN(planned.meshes.emplace_back(), GroupsOfMesh(mesh, world_size, rank));
  for (const GroupMembers& members : groups) {
    std::optional<int> of_group;
    for (const std::shared_ptr<Parameter>& parameter : members.parameters) {
      int index = 0;
      if (const auto own = policy.mesh_of ? policy.mesh_of(*parameter) : std::nullopt) {
        const absl::StatusOr<MeshGroups> found = GroupsOfMesh(*own, world_size, rank);
        if (!found.ok()) return Annotate(found.status(), "mesh_of of parameter '" + parameter->name + "'");
        index = IndexOf(*found, planned.meshes);
      }
      if (of_group.value_or(index) != index) {
        return absl::InvalidArgumentError(
            absl::StrCat("parameter group '", members.name, "': mesh_of gives '",
                         members.parameters.front()->name, "' and '", parameter->name,
                         "' different meshes, but a group is gathered over one: list the module ",
                         "of the parameters that have a mesh of their own as a block, so that they have a "
                         "group of their own"));
      }
      of_group = index;
    }
    planned.mesh_of_group.push_back(of_group.value_or(0));
  }
  return planned;
}

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
