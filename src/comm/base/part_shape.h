// Shape of the part that one rank sends to another. Sender and receiver compare shapes before data moves.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>

#include "weft/core/tensor_view.h"

namespace weft {

// Trivially copyable: lies in node memory and travels in control messages. All shapes without elements are
// represented as [0].
struct PartShape {
  static constexpr int kMaxDims = 5;
  int32_t dims = 1;
  std::array<int64_t, kMaxDims> sizes{};

  // The one-dimensional shape [elements].
  static PartShape OneDim(int64_t elements) { return {1, {elements}}; }
  // The shape of a view. An undefined view (no memory, no dims) has the shape [0].
  // REQUIRES: the view has at most kMaxDims dims.
  static PartShape Of(const TensorView& view);

  Shape ToShape() const { return {sizes.begin(), sizes.begin() + dims}; }
  int64_t elements() const {
    return std::accumulate(sizes.begin(), sizes.begin() + dims, int64_t{1}, std::multiplies<>());
  }
  friend bool operator==(const PartShape&, const PartShape&) = default;
};

inline std::string ToString(const PartShape& shape) { return ToString(shape.ToShape()); }

// True if a view has no elements or is undefined.
bool IsEmptyPart(const TensorView& view);

}  // namespace weft
