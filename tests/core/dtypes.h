// All element types, for loops over them.
#pragma once

#include "weft/core/dtype.h"

namespace weft {

inline constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64,
                                    DType::kI32, DType::kI16,  DType::kI8,  DType::kU8};

}  // namespace weft
