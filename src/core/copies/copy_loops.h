// Loop nest over a source and a target layout: the common part of CopyPlan and RangeCopy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/status/status.h>

#include "src/core/copies/convert_run.h"
#include "weft/core/strided_copy.h"

namespace weft::internal {

// Errors: kInvalidArgument (shapes differ; one dtype is an integer and the other floating-point; a dim of the
// target has stride 0).
absl::Status CheckCopyable(const TensorView& source, const TensorView& target);

// One loop for each dim of size other than 1, in the order of the dims.
std::vector<CopyLoop> LoopsOf(const TensorView& source, const TensorView& target);

// Merges two adjacent loops if the outer stride is the inner stride times the inner count, on both sides.
std::vector<CopyLoop> MergeLoops(const std::vector<CopyLoop>& loops);

// Outer loops around runs of one kernel. Elements are numbered in loop order, the innermost loop fastest.
struct LoopNest {
  const std::vector<CopyLoop>& outer;
  const CopyLoop& inner;
  RunKernel kernel;
  size_t source_bytes;  // Size of a source element.
  size_t target_bytes;  // Size of a target element.

  // Copies elements [begin, end). `source` and `target` point to the elements at offsets `source_origin` and
  // `target_origin` of the layouts.
  void Run(const std::byte* source, std::byte* target, int64_t begin, int64_t end, double scale,
           int64_t source_origin = 0, int64_t target_origin = 0) const;
};

}  // namespace weft::internal
