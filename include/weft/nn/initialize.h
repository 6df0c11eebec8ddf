// Initial values of parameters, from the counter-based random number generator Philox4x32-10. An element
// depends only on the seed, the name of its parameter and its index.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/nn/parameter.h"

namespace weft {

// Writes the initial values of elements [start, start + count) of the parameter, in row-major order, to
// `out`.
// REQUIRES: 0 <= start, and start + count <= parameter.elements().
void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t start, int64_t count, float* out);

}  // namespace weft
