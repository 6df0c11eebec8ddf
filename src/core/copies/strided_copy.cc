#include "weft/core/strided_copy.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "src/core/copies/copy_loops.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// With fewer elements per thread, starting the threads costs more than it saves.
constexpr int64_t kElementsPerThread = int64_t{64} << 10;

// Sorts the loops by stride, largest first, so that the innermost loop accesses adjacent elements. The
// target's strides take precedence, because scattered writes cost more than scattered reads.
void SortByStride(std::vector<CopyLoop>& loops) {
  std::stable_sort(loops.begin(), loops.end(), [](const CopyLoop& a, const CopyLoop& b) {
    return std::tuple(std::abs(a.target_stride), std::abs(a.source_stride)) >
           std::tuple(std::abs(b.target_stride), std::abs(b.source_stride));
  });
}

}  // namespace

absl::StatusOr<CopyPlan> CopyPlan::Make(const TensorView& source, const TensorView& target) {
  WEFT_RETURN_IF_ERROR(internal::CheckCopyable(source, target));
  CopyPlan plan{source.dtype, target.dtype, {}, {.count = 1, .source_stride = 1, .target_stride = 1}};
  if (source.elements() == 0) {
    plan.inner.count = 0;
    return plan;
  }
  plan.outer = internal::LoopsOf(source, target);
  SortByStride(plan.outer);
  plan.outer = internal::MergeLoops(plan.outer);
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

void CopyPlan::Run(const void* source, void* target, double scale) const {
  const internal::LoopNest nest{outer, inner, internal::SelectRunKernel(source_dtype, target_dtype, scale),
                                SizeOf(source_dtype), SizeOf(target_dtype)};
  // Threads divide the elements and not the runs: a plan may be one long run or many short ones.
  ParallelFor(elements(), kElementsPerThread, [&](int64_t begin, int64_t end) {
    nest.Run(static_cast<const std::byte*>(source), static_cast<std::byte*>(target), begin, end, scale);
  });
}

absl::Status StridedCopy(const TensorView& source, const TensorView& target, double scale) {
  WEFT_ASSIGN_OR_RETURN(const CopyPlan plan, CopyPlan::Make(source, target));
  plan.Run(source.data, target.data, scale);
  return absl::OkStatus();
}

void ConvertRun(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count,
                double scale) {
  const CopyPlan plan{source_dtype, target_dtype, {}, {count, 1, 1}};
  plan.Run(source, target, scale);
}

}  // namespace weft
