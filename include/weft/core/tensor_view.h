// A typed, strided window on memory that somebody else owns.
//
// Thread safety: a value; what it points to follows the owner's rules.
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

// Product of the sizes; 1 for a scalar's empty shape.
int64_t ElementCount(const Shape& shape);
// "[2, 3]".
std::string ToString(const Shape& shape);

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Shape strides;  // In elements, one for each dim.

  // Row-major view of `shape` at `data`.
  static TensorView Contiguous(void* data, DType dtype, Shape shape);

  int64_t elements() const { return ElementCount(shape); }
  size_t bytes() const { return static_cast<size_t>(elements()) * SizeOf(dtype); }
  bool IsContiguous() const;

  // The first element, as T. The dtype must be T's.
  template <typename T>
  T* As() const {
    WEFT_CHECK(dtype == kDTypeOf<T>, "tensor view read as another dtype");
    return static_cast<T*>(data);
  }

  // The window [start, start + length) of `dim`; `dim` may be negative. Out of range is a broken invariant.
  TensorView Slice(int dim, int64_t start, int64_t length) const;
  // Dims in the order given, e.g. {1, 0} for a transpose.
  TensorView Permute(absl::Span<const int> order) const;
  // The same elements under another shape of the same count. The view must be contiguous.
  TensorView Reshape(Shape new_shape) const;
};

}  // namespace weft
