// Copy of any range of a strided tensor's elements, for copies that proceed in slices or send slices to a
// peer.
//
// Elements are numbered in the row-major order of the shape. Two ranks that know only the shape therefore
// mean the same elements, regardless of how each of them stores the tensor.
//
// Thread safety: a value. Run is const; ranges that do not overlap may run concurrently.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/core/strided_copy.h"
#include "weft/core/tensor_view.h"

namespace weft {

class RangeCopy {
 public:
  RangeCopy() = default;  // Has no elements.

  // Copies between two layouts of the same shape and dtype.
  // REQUIRES: as CopyPlan::Make.
  // Errors: kInvalidArgument (shape or dtype differ; a dim of the target has stride 0).
  static absl::StatusOr<RangeCopy> Make(const TensorView& source, const TensorView& target);
  // Pack copies from a strided tensor to a contiguous buffer that holds only the copied range. Unpack copies
  // back.
  static RangeCopy Pack(const TensorView& source);
  static RangeCopy Unpack(const TensorView& target);

  DType dtype() const { return dtype_; }
  int64_t elements() const { return elements_; }
  // Copies elements [first, first + count) on the calling thread. `source` and `target` point to the first
  // element of a buffer with the layout given at construction, or to the start of the packed range.
  void Run(const void* source, void* target, int64_t first, int64_t count) const;

 private:
  enum class Side : uint8_t { kWhole, kPacked };
  RangeCopy(const TensorView& source, const TensorView& target, Side source_side, Side target_side);

  DType dtype_ = DType::kF32;
  int64_t elements_ = 0;
  std::vector<CopyLoop> outer_;
  CopyLoop inner_{.count = 1, .source_stride = 1, .target_stride = 1};
  Side source_ = Side::kWhole;
  Side target_ = Side::kWhole;
};

}  // namespace weft
