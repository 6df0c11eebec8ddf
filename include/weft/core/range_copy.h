// Copies a strided tensor piece by piece: for moves that are interrupted, or whose pieces travel.
//
// Elements are numbered in the row-major order of the shape, so two ranks that know only the shape name the
// same elements, however each of them stores the tensor.
//
// Thread safety: a value; Run is const, and pieces that do not overlap may be run at once.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/core/strided_copy.h"
#include "weft/core/tensor_view.h"

namespace weft {

class RangeCopy {
 public:
  RangeCopy() = default;  // Of nothing.

  // Between two layouts of one shape and dtype. Errors: kInvalidArgument (they differ; a target whose
  // elements lie on top of each other).
  static absl::StatusOr<RangeCopy> Make(const TensorView& source, const TensorView& target);
  // From a strided tensor to a run that holds nothing but the range that is copied, and back.
  static RangeCopy Pack(const TensorView& source);
  static RangeCopy Unpack(const TensorView& target);

  DType dtype() const { return dtype_; }
  int64_t elements() const { return elements_; }
  // Copies elements [first, first + count) on the calling thread. `source` and `target` are the first
  // elements of buffers laid out like those this was made for, or of the packed run.
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
