// What a collective does with which memory, as its submitter said it. Pure.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "weft/comm/types.h"
#include "weft/core/dtype.h"
#include "weft/core/tensor_view.h"

namespace weft {

// The parts of a buffer that belong to each group rank, end to end.
struct PartLayout {
  std::vector<int64_t> counts;   // Elements.
  std::vector<int64_t> offsets;  // Elements; prefix sums of the counts.

  static PartLayout FromCounts(std::vector<int64_t> counts);

  int64_t total() const { return counts.empty() ? 0 : offsets.back() + counts.back(); }
};

struct CollectivePlan {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* before = nullptr;  // AG of changes: what outputs elsewhere hold in place of the own part.
  PartLayout parts;             // AG, broadcast: of the output. RS: of the input. AR: who reduces what.
  // A2A, by group rank; then input and output are unused, and parts, too.
  std::vector<TensorView> sends;
  std::vector<TensorView> receives;

  // Of anything but an exchange.
  static CollectivePlan OfRuns(OpKind kind, DType dtype, ReduceOp reduce, const std::byte* input,
                               std::byte* output, PartLayout parts) {
    return {kind, dtype, reduce, input, output, /*before=*/nullptr, std::move(parts), {}, {}};
  }
};

}  // namespace weft
