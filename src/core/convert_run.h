// Kernels for the innermost loop of a copy: one run of elements with constant strides, converted and scaled.
// (ConvertRun itself is in strided_copy.h.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/core/dtype.h"

namespace weft::internal {

// Strides are in elements.
using RunKernel = void (*)(const std::byte* source, int64_t source_stride, std::byte* target,
                           int64_t target_stride, int64_t count, double scale);

// The kernel for a pair of dtypes. Equal dtypes with scale 1 are copied bit by bit.
// REQUIRES: CopyPlan::Make accepts the pair; `scale` is 1 for integers.
RunKernel SelectRunKernel(DType source, DType target, double scale);

}  // namespace weft::internal
