// Initial values by a counter-based generator: an element depends on nothing but the seed, its parameter's
// name and its index.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/nn/parameter.h"

namespace weft {

// Writes elements [start, start + count) of the parameter (row-major order) to `out`, in fp32.
void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t start, int64_t count, float* out);

}  // namespace weft
