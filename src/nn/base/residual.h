// In-place sum of a residual connection. (The module Residual is in weft/nn/sequential.h.)
#pragma once

#include "weft/core/tensor.h"

namespace weft {

// target += addend, in fp32 and rounded once. REQUIRES: equal shape and dtype; both are contiguous.
void AddInPlace(const Tensor& target, const Tensor& addend);

}  // namespace weft
