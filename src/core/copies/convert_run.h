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

// Conversions between f16 and f32 by instructions of the CPU (F16C): three to four times as fast in the cache
// as those of weft/core/dtype.h, to the same bits.
namespace f16c {

// False on other CPUs, and if the compiler has no such instructions. The functions below then must not be
// called.
bool IsAvailable();
// target[i] = source[i] * scale, rounded to f32, and in Narrow then to f16. No overlap.
void Widen(const F16* source, float* target, int64_t count, float scale);
void Narrow(const float* source, F16* target, int64_t count, float scale);

}  // namespace f16c

}  // namespace weft::internal
