#include "weft/core/strided_copy.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "src/core/convert_run.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// Below this many elements a thread, starting threads costs more than they save.
constexpr int64_t kElementsPerThread = int64_t{64} << 10;

// Largest steps outermost, so that the innermost loop runs through neighbours; the target decides, as
// scattered writes cost more than scattered reads.
void Order(std::vector<CopyLoop>& loops) {
  std::stable_sort(loops.begin(), loops.end(), [](const CopyLoop& a, const CopyLoop& b) {
    return std::tuple(std::abs(a.target_stride), std::abs(a.source_stride)) >
           std::tuple(std::abs(b.target_stride), std::abs(b.source_stride));
  });
}

// Two neighbouring loops are one where a full inner round ends exactly one outer step ahead, on both sides.
std::vector<CopyLoop> Merge(const std::vector<CopyLoop>& loops) {
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

absl::Status CheckCopyable(const TensorView& source, const TensorView& target) {
  if (source.shape != target.shape) {
    return absl::InvalidArgumentError(absl::StrCat("cannot copy a tensor of shape ", ToString(source.shape),
                                                   " to one of shape ", ToString(target.shape)));
  }
  if (IsFloating(source.dtype) != IsFloating(target.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("no cast from ", ToAbsl(Name(source.dtype)), " to ",
                                                   ToAbsl(Name(target.dtype)),
                                                   ": only among floating-point types and among integers"));
  }
  if (target.elements() == 0) return absl::OkStatus();  // Nothing lies anywhere.
  for (size_t dim = 0; dim < target.shape.size(); ++dim) {
    if (target.shape[dim] > 1 && target.strides[dim] == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("dim ", dim, " of the target has stride 0: its elements lie on top of each other"));
    }
  }
  return absl::OkStatus();
}

// A position in the plan's outer loops, advanced like an odometer.
class Odometer {
 public:
  // `run` counts inner runs from the start of the plan.
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

absl::StatusOr<CopyPlan> CopyPlan::Make(const TensorView& source, const TensorView& target) {
  WEFT_RETURN_IF_ERROR(CheckCopyable(source, target));
  CopyPlan plan{source.dtype, target.dtype, {}, {.count = 1, .source_stride = 1, .target_stride = 1}};
  if (source.elements() == 0) {
    plan.inner.count = 0;
    return plan;
  }
  for (size_t dim = 0; dim < source.shape.size(); ++dim) {
    if (source.shape[dim] != 1) {
      plan.outer.push_back({source.shape[dim], source.strides[dim], target.strides[dim]});
    }
  }
  Order(plan.outer);
  plan.outer = Merge(plan.outer);
  if (!plan.outer.empty()) {
    plan.inner = plan.outer.back();
    plan.outer.pop_back();
  }
  return plan;
}

int64_t CopyPlan::elements() const {
  int64_t count = inner.count;
  for (const CopyLoop& loop : outer) count *= loop.count;
  return count;
}

void CopyPlan::Run(const void* source, void* target, float scale) const {
  const internal::RunKernel kernel = internal::SelectRunKernel(source_dtype, target_dtype, scale);
  const auto source_size = static_cast<int64_t>(SizeOf(source_dtype));
  const auto target_size = static_cast<int64_t>(SizeOf(target_dtype));
  // Threads divide the elements, not the runs: a plan may be one long run or many short ones.
  ParallelFor(elements(), kElementsPerThread, [&](int64_t begin, int64_t end) {
    Odometer at(outer, begin / inner.count);
    int64_t skip = begin % inner.count;
    for (int64_t done = begin; done < end; at.Advance(), skip = 0) {
      const int64_t length = std::min(inner.count - skip, end - done);
      kernel(static_cast<const std::byte*>(source) + (at.source() + skip * inner.source_stride) * source_size,
             inner.source_stride,
             static_cast<std::byte*>(target) + (at.target() + skip * inner.target_stride) * target_size,
             inner.target_stride, length, scale);
      done += length;
    }
  });
}

absl::Status StridedCopy(const TensorView& source, const TensorView& target, float scale) {
  WEFT_ASSIGN_OR_RETURN(const CopyPlan plan, CopyPlan::Make(source, target));
  plan.Run(source.data, target.data, scale);
  return absl::OkStatus();
}

void ConvertRun(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
                float scale) {
  const CopyPlan plan{source_dtype, target_dtype, {}, {count, 1, 1}};
  plan.Run(source, target, scale);
}

}  // namespace weft
