// Shapes of activations, and the memory of parameters.
#pragma once

#include <cstdint>

#include "weft/core/status.h"
#include "weft/core/tensor.h"
#include "weft/nn/parameter.h"

namespace weft {

// The product of all dims but the last.
inline int64_t Rows(const Tensor& tensor) {
  int64_t rows = 1;
  for (size_t dim = 0; dim + 1 < tensor.shape().size(); ++dim) rows *= tensor.shape()[dim];
  return rows;
}

inline Shape WithLastDim(Shape shape, int64_t size) {
  shape.back() = size;
  return shape;
}

// The parameter's data, in a pass of its module. REQUIRES: CheckParameters has passed; the data are
// contiguous.
inline const TensorView& UnshardedData(const Parameter& parameter, DType compute) {
  WEFT_CHECK(parameter.data.data != nullptr,
             absl::StrCat(parameter.name, " is used while it is sharded; unshard it first"));
  WEFT_CHECK(parameter.data.dtype == compute && parameter.data.IsContiguous(),
             absl::StrCat(parameter.name, " must be contiguous and have the dtype of the activations"));
  return parameter.data;
}

// The parameter's gradient, in a backward of its module. REQUIRES: the gradient is contiguous.
inline const TensorView& WritableGradient(const Parameter& parameter) {
  WEFT_CHECK(parameter.grad.data != nullptr && parameter.grad.IsContiguous(),
             absl::StrCat(parameter.name, " has no contiguous memory for its gradient"));
  return parameter.grad;
}

}  // namespace weft
