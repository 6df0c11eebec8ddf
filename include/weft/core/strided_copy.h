// Copies between strided tensors of the same shape, with dtype conversion and scaling fused into one pass.
//
// Elements are computed in double if either dtype is f64, else in float, to which `scale` is rounded.
//
// A CopyPlan is the pure part: it merges and orders the dims once. Run then loops over contiguous runs. An
// element's result has the same bits at every offset, alignment and run length.
//
// Thread safety: a CopyPlan is a value; Run is const. Loops run on the calling rank's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/core/tensor_view.h"

namespace weft {

// One loop of the plan's loop nest: its trip count, and its strides in elements.
struct CopyLoop {
  int64_t count;
  int64_t source_stride;
  int64_t target_stride;
};

struct CopyPlan {
  DType source_dtype;
  DType target_dtype;
  std::vector<CopyLoop> outer;  // Outermost first; no loop has count 1.
  CopyLoop inner;               // The innermost loop; its strides are 1 if the layouts allow it.

  // Plans target = source * scale. A source stride may be 0 (a broadcast).
  // REQUIRES: the elements of the target do not overlap. Of such targets, only those with a stride of 0 are
  // an error.
  // Errors: kInvalidArgument (shapes differ; one dtype is an integer and the other floating-point; a dim of
  // the target has stride 0).
  static absl::StatusOr<CopyPlan> Make(const TensorView& source, const TensorView& target);

  int64_t elements() const;
  // Runs the plan on buffers with the planned layouts. Large copies use the calling rank's threads. A
  // conversion to an integer of fewer bits keeps the low ones.
  // REQUIRES: `scale` is 1 for integers. Source and target do not overlap, or are the same memory with the
  // same layout and dtype.
  void Run(const void* source, void* target, double scale = 1.0) const;
};

// Makes a plan and runs it.
// Errors: as CopyPlan::Make.
absl::Status StridedCopy(const TensorView& source, const TensorView& target, double scale = 1.0);

// target[i] = source[i] * scale, converted, for `count` contiguous elements.
// REQUIRES: as CopyPlan::Make and Run.
void ConvertRun(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
                double scale = 1.0);

}  // namespace weft
