// The shape of what one rank sends another: part of what ranks compare before data moves.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "weft/core/tensor_view.h"

namespace weft {

// Plain data: lies in node memory and travels in notes. All shapes without elements are the same, [0].
struct PartShape {
  static constexpr int kMaxDims = 5;
  int32_t dims = 1;
  std::array<int64_t, kMaxDims> sizes{};

  // Of a run of elements.
  static PartShape Run(int64_t elements) { return {1, {elements}}; }
  // At most kMaxDims dims. A view that is undefined (no memory, no dims) is empty.
  static PartShape Of(const TensorView& view);

  Shape ToShape() const { return {sizes.begin(), sizes.begin() + dims}; }
  int64_t elements() const { return ElementCount(ToShape()); }
  friend bool operator==(const PartShape&, const PartShape&) = default;
};

inline std::string ToString(const PartShape& shape) { return ToString(shape.ToShape()); }

// Whether a view has no elements, or is not defined at all.
bool IsEmptyPart(const TensorView& view);

}  // namespace weft
