// Sum of a residual connection.
#pragma once

#include "weft/core/tensor.h"

namespace weft {

// target += addend, in fp32 and rounded once. REQUIRES: equal shape and dtype.
void AddInPlace(const Tensor& target, const Tensor& addend);

}  // namespace weft
