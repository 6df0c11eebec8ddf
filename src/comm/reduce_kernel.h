// Evaluates a reduction program over memory: block by block, in fp32 (integers in their own type), one
// rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include <absl/types/span.h>

#include "src/comm/reduction_tree.h"
#include "weft/comm/types.h"
#include "weft/core/dtype.h"

namespace weft {

struct LeafSource {
  const std::byte* data;
  DType dtype;
};

struct ReduceTarget {
  std::byte* data;
  DType dtype;
  // Multiplies the result before it is rounded to `dtype`: 1 but for averages. Must be 1 for integers.
  float scale = 1.0F;
  // Write around the caches; worth it where the result is larger than the last-level cache.
  bool nontemporal = false;
};

// target[i] = program over leaf[..][i], for i < count. Leaves and target are all floating-point or all of one
// integer type. The target may be one of the leaves (in place), else must not overlap any.
void RunReduce(const ReduceProgram& program, absl::Span<const LeafSource> leaves, ReduceOp op,
               ReduceTarget target, int64_t count);

}  // namespace weft
