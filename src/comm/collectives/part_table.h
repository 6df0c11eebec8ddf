// Part tables: the tensors of an all-to-all, as ranks of a node describe them to each other.
//
// Note [Part tables]
// Problem: only the sender of a part knows its address and strides, but local peers copy parts directly.
// Rule: a rank publishes, as its input, a part table in node memory. The table has a row for each rank of the
// node, with the shape, the strides and the address of the part for that rank.
// Why it suffices: publishing the descriptor makes the rows visible, and the table lives as long as the
// operation.
// Within one node, the table also has rows of the parts that the rank receives. The rank that arrives last
// moves all parts if they are small together: see Note [Last arrival]. The others learn from it which way is
// taken, because only the tables of all ranks tell the size.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/comm/base/descriptor.h"
#include "src/comm/base/part_shape.h"
#include "src/comm/links/node_link.h"
#include "weft/core/tensor_view.h"

namespace weft {

// Row of a part table. Trivially copyable, in node memory.
struct PartRow {
  PartShape shape;
  std::array<int64_t, PartShape::kMaxDims> strides{};  // Elements.
  NodeAddress address = Descriptor::kNoAddress;        // Of a part that peers can reach, and not empty.

  bool is_empty() const { return shape == PartShape(); }
};

inline PartRow RowOf(const TensorView& part, NodeAddress address) {
  PartRow row;
  row.shape = PartShape::Of(part);
  row.address = address;
  std::copy(part.strides.begin(), part.strides.end(), row.strides.begin());
  return row;
}

inline TensorView ViewOf(const PartRow& row, std::byte* data, DType dtype) {
  return {data, dtype, row.shape.ToShape(), {row.strides.begin(), row.strides.begin() + row.shape.dims}};
}

// Address of a part in node memory. Nothing unless all of the part lies in one segment of node memory.
inline std::optional<NodeAddress> AddressOf(const NodeLink& node, const TensorView& part) {
  int64_t lowest = 0;
  int64_t highest = 0;
  for (size_t dim = 0; dim < part.shape.size(); ++dim) {
    const int64_t reach = (part.shape[dim] - 1) * part.strides[dim];
    (reach < 0 ? lowest : highest) += reach;
  }
  const auto* first = static_cast<const std::byte*>(part.data);
  const auto element_bytes = static_cast<int64_t>(SizeOf(part.dtype));
  const auto begin = node.AddressOf(first + lowest * element_bytes,
                                    static_cast<size_t>((highest - lowest + 1) * element_bytes));
  if (!begin) return std::nullopt;
  return NodeAddress{begin->rank, begin->offset + static_cast<uint64_t>(-lowest * element_bytes)};
}

}  // namespace weft
