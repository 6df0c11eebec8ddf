// Addition of contiguous runs of elements, computed in double if either dtype is f64, otherwise in float.
//
// Thread safety: free functions; loops run on the calling rank's threads.
#pragma once

#include <cstdint>

#include "weft/core/dtype.h"

namespace weft {

// target[i] = target[i] + source[i] * scale. The sum is rounded to float (to double if either dtype is f64),
// then to the target's dtype; from double to 16 bits through float. An element's result has the same bits at
// every position in a run.
// REQUIRES: both dtypes are floating-point; source and target do not overlap.
void AddRun(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
            double scale = 1.0);

}  // namespace weft
