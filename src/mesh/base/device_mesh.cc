#include "weft/mesh/device_mesh.h"

#include <utility>

#include <absl/strings/str_join.h>

#include "weft/core/status.h"

namespace weft {
namespace {

std::string Describe(const std::vector<MeshAxis>& axes) {
  return absl::StrJoin(axes, " x ", [](std::string* out, const MeshAxis& axis) {
    absl::StrAppend(out, axis.name, " ", axis.size);
  });
}

absl::Status CheckAxes(const std::vector<MeshAxis>& axes) {
  int open = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const MeshAxis& axis = axes[i];
    if (axis.size == 0 || axis.size < -1) {
      return absl::InvalidArgumentError(absl::StrCat("mesh axis '", axis.name, "' has size ", axis.size,
                                                     ": use a positive size, or -1 to compute it"));
    }
    open += axis.size == -1 ? 1 : 0;
    for (size_t j = 0; j < i; ++j) {
      if (axes[j].name == axis.name) {
        return absl::InvalidArgumentError(
            absl::StrCat("mesh ", Describe(axes), " names '", axis.name, "' twice"));
      }
    }
  }
  if (open > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh ", Describe(axes), " has ", open, " axes of size -1: only one can be computed"));
  }
  return absl::OkStatus();
}

// Indices of the named axes.
// Errors: as DeviceMesh::Group.
absl::StatusOr<std::vector<size_t>> FindAxes(const std::vector<MeshAxis>& axes,
                                             absl::Span<const std::string_view> names) {
  std::vector<size_t> found;
  for (const std::string_view name : names) {
    size_t index = 0;
    while (index < axes.size() && axes[index].name != name) ++index;
    if (index == axes.size()) {
      return absl::NotFoundError(absl::StrCat("no mesh axis '", ToAbsl(name), "' in ", Describe(axes)));
    }
    if (!found.empty() && index <= found.back()) {
      return absl::InvalidArgumentError(absl::StrCat("mesh axis '", ToAbsl(name),
                                                     "' is repeated or out of order: name axes in",
                                                     " the order of ", Describe(axes), ", each once"));
    }
    found.push_back(index);
  }
  return found;
}

}  // namespace

absl::StatusOr<DeviceMesh> DeviceMesh::Create(std::vector<MeshAxis> axes, int world_size) {
  WEFT_RETURN_IF_ERROR(CheckAxes(axes));
  int64_t product = 1;
  MeshAxis* open = nullptr;
  for (MeshAxis& axis : axes) {
    if (axis.size == -1) {
      open = &axis;
    } else {
      product *= axis.size;
    }
    if (product > world_size) break;  // Avoids overflow.
  }
  if (open != nullptr && world_size % product == 0) {
    open->size = static_cast<int>(world_size / product);
    product = world_size;
  }
  if (product != world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mesh ", Describe(axes), " does not multiply to the ", world_size,
        " ranks of this run: change an axis (one may be -1, to compute it) or the number of ranks"));
  }
  return DeviceMesh(std::move(axes));
}

int DeviceMesh::size() const {
  int size = 1;
  for (const MeshAxis& axis : axes_) size *= axis.size;
  return size;
}

absl::StatusOr<int> DeviceMesh::AxisSize(std::string_view axis) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<size_t> found, FindAxes(axes_, {axis}));
  return axes_[found.front()].size;
}

std::vector<int> DeviceMesh::Coordinates(int rank) const {
  WEFT_CHECK(rank >= 0 && rank < size(), "rank outside the mesh");
  std::vector<int> coordinates(axes_.size());
  for (size_t axis = axes_.size(); axis-- > 0;) {
    coordinates[axis] = rank % axes_[axis].size;
    rank /= axes_[axis].size;
  }
  return coordinates;
}

absl::StatusOr<ProcessGroup> DeviceMesh::Group(absl::Span<const std::string_view> axes, int rank) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<size_t> along, FindAxes(axes_, axes));
  ProcessGroup group;
  group.name = along.empty() ? "self" : absl::StrJoin(along, "_", [&](std::string* out, size_t axis) {
    out->append(axes_[axis].name);
  });
  // Members have the coordinates of `rank` on all other axes.
  const std::vector<int> own = Coordinates(rank);
  for (int other = 0; other < size(); ++other) {
    std::vector<int> coordinates = Coordinates(other);
    for (const size_t axis : along) coordinates[axis] = own[axis];
    if (coordinates != own) continue;
    if (other == rank) group.group_rank = group.size();
    group.ranks.push_back(other);
  }
  return group;
}

std::string DeviceMesh::ToString() const { return Describe(axes_); }

}  // namespace weft
