// Division of gradients before and after their reduction.
//
// Pure.
#pragma once

#include "weft/core/dtype.h"

namespace weft {

// Factors of gradients before and after their reduction.
struct DivideScales {
  float before = 1.0F;
  float after = 1.0F;
};

// Splits a division by `factor` > 0. f16 overflows above 65504 and loses bits below 6e-5. So gradients
// reduced in f16 are divided by a power of two p with p * p >= factor before the reduction, which is exact
// except for underflow, and by factor / p after it. f32 and bf16 have enough range, and are divided after it.
// A factor of 1 changes no bit.
inline DivideScales SpreadDivision(float factor, DType reduce_dtype) {
  float before = 1.0F;
  if (reduce_dtype == DType::kF16) {
    while (before * before < factor) before *= 2.0F;
  }
  return {1.0F / before, before / factor};
}

}  // namespace weft
