// A typed, strided, non-owning view of memory.
//
// Thread safety: a value; access to the elements follows the owner's rules.
// Lifetime: the owner must keep the memory while the view is in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <absl/container/inlined_vector.h>
#include <absl/types/span.h>

#include "weft/core/dtype.h"
#include "weft/core/status.h"

namespace weft {

using Shape = absl::InlinedVector<int64_t, 5>;

// Product of the sizes; 1 for the empty shape of a scalar. The largest int64_t if the product is larger.
int64_t ElementCount(const Shape& shape);
// Example: "[2, 3]".
std::string ToString(const Shape& shape);

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Shape strides;  // In elements, one for each dim.

  // Row-major view of `shape` at `data`.
  static TensorView Contiguous(void* data, DType dtype, Shape shape);

  int64_t elements() const { return ElementCount(shape); }
  // The size of the elements. It is more than any memory has if the product is too large for a size_t.
  size_t bytes() const;
  bool IsContiguous() const;

  // Pointer to the first element.
  // REQUIRES: T is the C++ type of `dtype`.
  template <typename T>
  T* As() const {
    WEFT_CHECK(dtype == kDTypeOf<T>, "tensor view accessed as another dtype");
    return static_cast<T*>(data);
  }

  // Indices [start, start + length) of `dim`. A negative `dim` counts from the end.
  // REQUIRES: both are in range.
  TensorView Slice(int dim, int64_t start, int64_t length) const;
  // The dims in the given order; {1, 0} is a transpose.
  // REQUIRES: `order` is a permutation of the dims.
  TensorView Permute(absl::Span<const int> order) const;
  // The same elements with another shape.
  // REQUIRES: the view is contiguous; the element count is the same.
  TensorView Reshape(Shape new_shape) const;
};

// True if both have the same elements in the same order, at the same addresses.
inline bool IsSameView(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
}

}  // namespace weft
