// An n-dimensional arrangement of ranks with named axes, outermost first: rank = row-major index.
//
// Pure: every rank builds the same mesh from the same numbers; no communication.
#pragma once

#include <string>
#include <string_view>
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
  // `axes` multiply to `world_size`. One axis may have size -1: it takes the rest. Errors: kInvalidArgument
  // (names the axes, the product and the ranks; an axis of size 0 or below -1; a name twice).
  static absl::StatusOr<DeviceMesh> Create(std::vector<MeshAxis> axes, int world_size);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int size() const;
  // Errors: kNotFound (lists the axes).
  absl::StatusOr<int> AxisSize(std::string_view axis) const;

  // The caller's coordinates, one for each axis.
  std::vector<int> Coordinates(int rank) const;

  // The group of ranks that differ from `rank` only in the named axes, flattened in mesh order. The axes may
  // be any subset, in mesh order; none gives the rank alone. The group is named after them, "shard_context"
  // for two. Errors: kNotFound, kInvalidArgument (axes out of order or repeated).
  absl::StatusOr<ProcessGroup> Group(absl::Span<const std::string_view> axes, int rank) const;

  // The mesh over the named axes only, as seen by a rank: its ranks are positions in Group(axes, rank).
  absl::StatusOr<DeviceMesh> Submesh(absl::Span<const std::string_view> axes) const;

  // "replicate 2 x shard 2".
  std::string ToString() const;

 private:
  explicit DeviceMesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {}
  std::vector<MeshAxis> axes_;
};

}  // namespace weft
