// The innermost loop of a copy: one run of elements, converted and scaled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/core/dtype.h"

namespace weft::internal {

// Strides are in elements.
using RunKernel = void (*)(const std::byte* source, int64_t source_stride, std::byte* target,
                           int64_t target_stride, int64_t count, float scale);

// The kernel of a pair of dtypes that CopyPlan::Make accepts. Equal dtypes and scale 1 are moved bit by bit.
RunKernel SelectRunKernel(DType source, DType target, float scale);

}  // namespace weft::internal
