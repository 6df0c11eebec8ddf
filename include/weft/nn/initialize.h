// Initial values of parameters, from the counter-based random number generator Philox4x32-10 (Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", 2011). An element depends only on the seed, the name of its
// parameter and its index: a hash of seed and name is the key, and index / 4 the counter, whose block has
// four values. Normal values are by Box and Muller (1958). Values are computed in double and rounded to float
// once.
//
// Thread safety: free functions; loops run on the calling rank's threads.
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
