// What modules check and compute about the tensors they are given.
#pragma once

#include <cstdint>
#include <string>

#include "weft/core/status.h"
#include "weft/core/tensor.h"
#include "weft/nn/parameter.h"

namespace weft {

// All dims but the last, as one.
inline int64_t Rows(const Tensor& tensor) {
  int64_t rows = 1;
  for (size_t dim = 0; dim + 1 < tensor.shape().size(); ++dim) rows *= tensor.shape()[dim];
  return rows;
}

inline Shape WithLastDim(Shape shape, int64_t size) {
  shape.back() = size;
  return shape;
}

inline void CheckLastDim(const Tensor& tensor, int64_t size, const std::string& module) {
  WEFT_CHECK(!tensor.shape().empty() && tensor.shape().back() == size && tensor.view().IsContiguous(),
             absl::StrCat(module, " takes contiguous tensors whose last dim is ", size, ", not ",
                          ToString(tensor.shape())));
}

// The parameter's data, which must be there and of the activations' dtype.
inline const TensorView& GatheredData(const Parameter& parameter, DType compute) {
  WEFT_CHECK(parameter.data.data != nullptr,
             absl::StrCat(parameter.name, " is used while it is not gathered"));
  WEFT_CHECK(parameter.data.dtype == compute && parameter.data.IsContiguous(),
             absl::StrCat(parameter.name, " has another dtype than the activations, or gaps"));
  return parameter.data;
}

inline const TensorView& GradientToWrite(const Parameter& parameter) {
  WEFT_CHECK(parameter.grad.data != nullptr && parameter.grad.IsContiguous(),
             absl::StrCat(parameter.name, " has no memory for its gradient"));
  return parameter.grad;
}

}  // namespace weft
