// Sums of contiguous runs, in fp32 whatever they are stored in.
#pragma once

#include <cstdint>

#include "weft/core/dtype.h"

namespace weft {

// target[i] = target[i] + source[i] * scale, with one rounding to the target's dtype. The same element gives
// the same bits at any place of a run. Source and target must not overlap.
void AddRun(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
            float scale = 1.0F);

}  // namespace weft
