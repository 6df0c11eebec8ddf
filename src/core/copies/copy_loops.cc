#include "src/core/copies/copy_loops.h"

#include <algorithm>

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft::internal {
namespace {

// A position in the outer loops, as source and target offsets in elements.
class Odometer {
 public:
  // `run` is the number of the inner run, counted from the start of the loop nest.
  Odometer(const std::vector<CopyLoop>& loops, int64_t run) : loops_(loops), index_(loops.size()) {
    for (size_t i = loops.size(); i-- > 0;) {
      index_[i] = run % loops[i].count;
      run /= loops[i].count;
      source_ += index_[i] * loops[i].source_stride;
      target_ += index_[i] * loops[i].target_stride;
    }
  }

  int64_t source() const { return source_; }
  int64_t target() const { return target_; }

  void Advance() {
    for (size_t i = loops_.size(); i-- > 0;) {
      source_ += loops_[i].source_stride;
      target_ += loops_[i].target_stride;
      if (++index_[i] < loops_[i].count) return;
      source_ -= loops_[i].count * loops_[i].source_stride;
      target_ -= loops_[i].count * loops_[i].target_stride;
      index_[i] = 0;
    }
  }

 private:
  const std::vector<CopyLoop>& loops_;
  absl::InlinedVector<int64_t, 5> index_;
  int64_t source_ = 0;
  int64_t target_ = 0;
};

}  // namespace

absl::Status CheckCopyable(const TensorView& source, const TensorView& target) {
  if (source.shape != target.shape) {
    return absl::InvalidArgumentError(absl::StrCat("cannot copy a tensor of shape ", ToString(source.shape),
                                                   " to one of shape ", ToString(target.shape)));
  }
  if (IsFloating(source.dtype) != IsFloating(target.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("no cast from ", ToAbsl(Name(source.dtype)), " to ",
                                                   ToAbsl(Name(target.dtype)),
                                                   ": both must be floating-point types, or both integers"));
  }
  if (target.elements() == 0) return absl::OkStatus();
  for (size_t dim = 0; dim < target.shape.size(); ++dim) {
    if (target.shape[dim] > 1 && target.strides[dim] == 0) {
      return absl::InvalidArgumentError(absl::StrCat("dim ", dim,
                                                     " of the target has stride 0, so that its elements "
                                                     "overlap: use a target whose elements are distinct"));
    }
  }
  return absl::OkStatus();
}

std::vector<CopyLoop> LoopsOf(const TensorView& source, const TensorView& target) {
  std::vector<CopyLoop> loops;
  for (size_t dim = 0; dim < source.shape.size(); ++dim) {
    if (source.shape[dim] != 1) {
      loops.push_back({source.shape[dim], source.strides[dim], target.strides[dim]});
    }
  }
  return loops;
}

std::vector<CopyLoop> MergeLoops(const std::vector<CopyLoop>& loops) {
  std::vector<CopyLoop> merged;
  for (const CopyLoop& loop : loops) {
    if (!merged.empty()) {
      CopyLoop& last = merged.back();
      if (last.source_stride == loop.source_stride * loop.count &&
          last.target_stride == loop.target_stride * loop.count) {
        last = {last.count * loop.count, loop.source_stride, loop.target_stride};
        continue;
      }
    }
    merged.push_back(loop);
  }
  return merged;
}

void LoopNest::Run(const std::byte* source, std::byte* target, int64_t begin, int64_t end, double scale,
                   int64_t source_origin, int64_t target_origin) const {
  const auto source_size = static_cast<int64_t>(source_bytes);
  const auto target_size = static_cast<int64_t>(target_bytes);
  Odometer at(outer, begin / inner.count);
  int64_t skip = begin % inner.count;
  for (int64_t done = begin; done < end; at.Advance(), skip = 0) {
    const int64_t length = std::min(inner.count - skip, end - done);
    kernel(source + (at.source() + skip * inner.source_stride - source_origin) * source_size,
           inner.source_stride,
           target + (at.target() + skip * inner.target_stride - target_origin) * target_size,
           inner.target_stride, length, scale);
    done += length;
  }
}

}  // namespace weft::internal
