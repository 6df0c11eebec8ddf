// An n-dimensional grid of ranks with named axes, outermost first. A rank is its row-major index in the grid.
//
// Pure: every rank computes the same mesh from the same arguments, without communication.
//
// Thread safety: a value.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/mesh/process_group.h"

namespace weft {

struct MeshAxis {
  std::string name;
  int size;
};

class DeviceMesh {
 public:
  // The axis sizes must multiply to `world_size`. One axis may have size -1; its size is then computed.
  // Errors: kInvalidArgument (the product differs; an axis has size 0 or below -1; two axes have size -1; two
  // axes have the same name).
  static absl::StatusOr<DeviceMesh> Create(std::vector<MeshAxis> axes, int world_size);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int size() const;
  // Errors: kNotFound (lists the axes).
  absl::StatusOr<int> AxisSize(std::string_view axis) const;

  // Coordinates of `rank`, one for each axis.
  std::vector<int> Coordinates(int rank) const;

  // The group of `rank` along `axes`: all ranks that differ from it only on those axes, ascending. Without
  // axes, the group has `rank` alone. Its name joins the names of the axes, for example "shard_context";
  // without axes it is "self".
  // Errors: kNotFound (unknown axis), kInvalidArgument (axes are repeated or not in mesh order).
  absl::StatusOr<ProcessGroup> Group(absl::Span<const std::string_view> axes, int rank) const;

  // Example: "replicate 2 x shard 2".
  std::string ToString() const;

 private:
  explicit DeviceMesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {}
  std::vector<MeshAxis> axes_;
};

}  // namespace weft
