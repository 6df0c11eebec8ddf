// Initial values by a counter-based generator: element i of a parameter depends on (seed, parameter name, i)
// alone.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/nn/parameter.h"

namespace weft {

// Writes elements [start, start + count) of the parameter (row-major order) to `out`, in fp32.
void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t start, int64_t count, float* out);

}  // namespace weft
