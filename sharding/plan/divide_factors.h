// How a division of gradients is spread over a reduction.
//
// Pure.
#pragma once

#include "weft/core/dtype.h"

namespace weft {

// What gradients are multiplied by before and after their reduction.
struct DivideScales {
  float before = 1.0F;
  float after = 1.0F;
};

// `factor` > 0. Values that are exchanged in f16 overflow above 65504, and lose bits below 6e-5: a power of
// two p with p * p >= factor is divided out before, exactly but for what underflows, and factor / p after.
// f32 and bf16 have range enough: everything is divided after. A factor of 1 changes no bit.
inline DivideScales SpreadDivision(float factor, DType reduce_dtype) {
  float before = 1.0F;
  if (reduce_dtype == DType::kF16) {
    while (before * before < factor) before *= 2.0F;
  }
  return {1.0F / before, before / factor};
}

}  // namespace weft
