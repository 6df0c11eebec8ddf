// Evaluates a reduction program over memory: block by block, in fp32 (integers in their own type), one
// rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include <absl/container/inlined_vector.h>
#include <absl/types/span.h>

#include "src/comm/base/reduction_tree.h"
#include "src/comm/codec/wire_encoding.h"
#include "weft/comm/types.h"
#include "weft/core/dtype.h"

namespace weft {

struct LeafSource {
  const std::byte* data;
  DType dtype;
  WireEncoding form = WireEncoding::kPlain;  // Of tasks; for RunReduce it is plain.
};

struct ReduceTarget {
  std::byte* data;
  DType dtype;
  // Multiplies the result before it is rounded to `dtype`: 1 but for averages. Must be 1 for integers.
  float scale = 1.0F;
  // Write around the caches: see WritesAroundCaches.
  bool nontemporal = false;
  // Further places for the same result, in the same dtype.
  absl::InlinedVector<std::byte*, 4> copies = {};
  WireEncoding form = WireEncoding::kPlain;  // As of a leaf.
};

// target[i] = program over leaf[..][i], for i < count. Leaves and target are all floating-point or all of one
// integer type. The target, and any of its copies, may be one of the leaves (in place), else must not overlap
// any.
void RunReduce(const ReduceProgram& program, absl::Span<const LeafSource> leaves, ReduceOp op,
               const ReduceTarget& target, int64_t count);

}  // namespace weft
