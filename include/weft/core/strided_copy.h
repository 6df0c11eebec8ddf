// Copies between strided tensors of one shape, with conversion of the element type and a scale, fused in one
// pass.
//
// A CopyPlan is the pure part: dims merged and ordered once, so that running it is a loop over contiguous
// runs. The same element gives the same bits at any offset, alignment and run length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/status/status.h>

#include "weft/core/tensor_view.h"

namespace weft {

// One loop of the plan's nest: `count` times, with these strides in elements.
struct CopyLoop {
  int64_t count;
  int64_t source_stride;
  int64_t target_stride;
};

struct CopyPlan {
  DType source_dtype;
  DType target_dtype;
  std::vector<CopyLoop> outer;  // Outermost first; never of count 1.
  CopyLoop inner;               // The innermost loop; strides 1 where the layouts allow it.

  // Plans target = source * scale. A source stride may be 0 (a broadcast). Errors: kInvalidArgument (shapes
  // differ; a cast between an integer and a floating-point type; a target whose elements lie on top of each
  // other).
  static absl::StatusOr<CopyPlan> Make(const TensorView& source, const TensorView& target);

  int64_t elements() const;
  // Runs the plan on buffers laid out like those it was made for, on the caller's threads if it is large.
  // `scale` must be 1 for integers; i64 to i32 keeps the low bits. Source and target may be the same memory
  // with the same layout and dtype; otherwise they must not overlap.
  void Run(const void* source, void* target, float scale = 1.0F) const;
};

// Plans and runs at once.
absl::Status StridedCopy(const TensorView& source, const TensorView& target, float scale = 1.0F);

// target[i] = source[i] * scale over `count` contiguous elements, converting; the contiguous case of the
// above.
void ConvertRun(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
                float scale = 1.0F);

}  // namespace weft
