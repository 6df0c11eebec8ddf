// Division of gradients before and after their reduction.
//
// Pure.
#pragma once

#include "weft/core/dtype.h"

namespace weft {

// Factors of gradients before and after their reduction.
struct DivideScales {
  double before = 1.0;
  double after = 1.0;
};

// Splits a division by `factor` > 0. f16 overflows above 65504 and loses bits below 6e-5. So gradients
// reduced in f16 are divided by a power of two p with p * p >= factor before the reduction, which is exact
// except for underflow, and by factor / p after it. The other dtypes have enough range, and are divided after
// it. A factor of 1 changes no bit.
inline DivideScales SpreadDivision(double factor, DType reduce_dtype) {
  double before = 1.0;
  if (reduce_dtype == DType::kF16) {
    while (before * before < factor) before *= 2.0;
  }
  return {1.0 / before, before / factor};
}

}  // namespace weft
