// Evaluation of reduction programs over memory, block by block. f32, bf16 and f16 are accumulated in fp32 and
// rounded once; f64 and integers are reduced in their own type.
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

class ViewTable;

struct LeafSource {
  const std::byte* data;
  DType dtype;
  WireEncoding encoding = WireEncoding::kPlain;  // Tasks may have encoded leaves. RunReduce needs plain ones.
  // True if `data` is a buffer in which the elements lie in several ranges. The same holds for it.
  bool in_ranges = false;
  const ViewTable* views = nullptr;  // Of a buffer in ranges, instead of the block at `data`. Null: none.
};

struct ReduceTarget {
  std::byte* data;
  DType dtype;
  // Factor of a sum, applied before the result is rounded to `dtype`.
  double scale = 1.0;
  // Use non-temporal stores. See ShouldBypassCaches.
  bool nontemporal = false;
  // Further addresses that get the same result, in the same dtype.
  absl::InlinedVector<std::byte*, 4> copies = {};
  WireEncoding encoding = WireEncoding::kPlain;  // As in LeafSource.
};

constexpr bool IsBitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}

// For each i < count: target[i] = program(leaf 0 [i], leaf 1 [i], ...).
// REQUIRES: leaves and target are of f32, bf16 and f16, or all of one other dtype. `op` is defined for the
//   dtype. `scale` is 1 unless `op` is a sum or average of floating-point numbers.
//   The target and each of its copies is identical with a leaf (in place) or does not overlap any.
void RunReduce(const ReduceProgram& program, absl::Span<const LeafSource> leaves, ReduceOp op,
               const ReduceTarget& target, int64_t count);

}  // namespace weft
