// The residual's sum.
#pragma once

#include "weft/core/tensor.h"

namespace weft {

// target += addend, in fp32 and rounded once.
void AddInPlace(const Tensor& target, const Tensor& addend);

}  // namespace weft
