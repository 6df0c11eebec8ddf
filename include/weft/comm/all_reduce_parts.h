// Which of its elements each rank reduces in an all-reduce. A reduce-scatter of the same counts forms the
// same sums on the same ranks, so that its bits are those of the all-reduce, also where partial sums travel
// rounded.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/core/dtype.h"

namespace weft {

// By group rank, end to end: as many whole cache lines for each, as long as there are any.
std::vector<int64_t> AllReduceParts(int64_t elements, int ranks, DType dtype);

}  // namespace weft
