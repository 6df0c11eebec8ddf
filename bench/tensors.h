// Tensors of benchmarks.
#pragma once

#include <cmath>
#include <cstdint>

#include "weft/core/dtype.h"
#include "weft/core/strided_copy.h"
#include "weft/core/tensor.h"

namespace weft::bench {

inline Tensor Converted(const Tensor& values, DType dtype) {
  Tensor converted = Tensor::Empty(dtype, values.shape());
  ConvertRun(values.view().data, values.dtype(), converted.view().data, dtype, values.elements());
  return converted;
}

// [elements]; element i is sin(i).
inline Tensor Sines(int64_t elements, DType dtype) {
  const Tensor sines = Tensor::Empty(DType::kF32, {elements});
  for (int64_t i = 0; i < elements; ++i) sines.As<float>()[i] = std::sin(static_cast<float>(i));
  return Converted(sines, dtype);
}

}  // namespace weft::bench
