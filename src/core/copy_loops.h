// The loop nest that strided copies are made of, whatever order their elements go in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/status/status.h>

#include "src/core/convert_run.h"
#include "weft/core/strided_copy.h"

namespace weft::internal {

// One shape, dtypes that convert, and a target whose elements do not lie on top of each other.
// Errors: kInvalidArgument.
absl::Status CheckCopyable(const TensorView& source, const TensorView& target);

// A loop for each dim that has more than one index, in the order of the dims.
std::vector<CopyLoop> LoopsOf(const TensorView& source, const TensorView& target);

// Two neighbouring loops are one where a full inner round ends exactly one outer step ahead, on both sides.
std::vector<CopyLoop> MergeLoops(const std::vector<CopyLoop>& loops);

// Loops around runs of one kernel; elements are numbered in the order of the loops.
struct LoopNest {
  const std::vector<CopyLoop>& outer;
  const CopyLoop& inner;
  RunKernel kernel;
  size_t source_bytes;  // Of an element.
  size_t target_bytes;

  // Elements [begin, end). The origins are the places, in elements, that `source` and `target` point to.
  void Run(const std::byte* source, std::byte* target, int64_t begin, int64_t end, float scale,
           int64_t source_origin = 0, int64_t target_origin = 0) const;
};

}  // namespace weft::internal
