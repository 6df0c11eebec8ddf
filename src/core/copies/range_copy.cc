#include "weft/core/range_copy.h"

#include <absl/strings/str_cat.h>

#include "src/core/copies/copy_loops.h"
#include "weft/core/status.h"

namespace weft {

RangeCopy::RangeCopy(const TensorView& source, const TensorView& target, Side source_side, Side target_side)
    : dtype_(source.dtype), elements_(source.elements()), source_(source_side), target_(target_side) {
  if (elements_ == 0) return;
  outer_ = internal::MergeLoops(internal::LoopsOf(source, target));
  if (outer_.empty()) return;
  inner_ = outer_.back();
  outer_.pop_back();
}

absl::StatusOr<RangeCopy> RangeCopy::Make(const TensorView& source, const TensorView& target) {
  WEFT_RETURN_IF_ERROR(internal::CheckCopyable(source, target));
  if (source.dtype != target.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("RangeCopy does not convert dtypes, but the copy is from ",
                                                   ToAbsl(Name(source.dtype)), " to ",
                                                   ToAbsl(Name(target.dtype)), "; use CopyPlan"));
  }
  return RangeCopy(source, target, Side::kWhole, Side::kWhole);
}

RangeCopy RangeCopy::Pack(const TensorView& source) {
  return {source, TensorView::Contiguous(nullptr, source.dtype, source.shape), Side::kWhole, Side::kPacked};
}

RangeCopy RangeCopy::Unpack(const TensorView& target) {
  return {TensorView::Contiguous(nullptr, target.dtype, target.shape), target, Side::kPacked, Side::kWhole};
}

void RangeCopy::Run(const void* source, void* target, int64_t first, int64_t count) const {
  WEFT_CHECK(first >= 0 && count >= 0 && first <= elements_ - count, "range outside the copied tensor");
  const size_t element_bytes = SizeOf(dtype_);
  const internal::LoopNest nest{outer_, inner_, internal::SelectRunKernel(dtype_, dtype_, 1.0F),
                                element_bytes, element_bytes};
  nest.Run(static_cast<const std::byte*>(source), static_cast<std::byte*>(target), first, first + count, 1.0F,
           source_ == Side::kPacked ? first : 0, target_ == Side::kPacked ? first : 0);
}

}  // namespace weft
