// The gradients of a parameter group, from the views that backward writes to the reduced sum.
#include <cstring>
#include <utility>

#include "sharding/plan/divide_factors.h"
#include "sharding/plan/parameter_views.h"
#include "sharding/plan/shard_copies.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/sharding/param_group.h"

namespace weft {
namespace {

int64_t BytesOf(int64_t elements, DType dtype) { return elements * static_cast<int64_t>(SizeOf(dtype)); }

void Zero(std::byte* base, DType dtype, const std::vector<FlatRange>& ranges) {
  for (const FlatRange& range : ranges) {
    std::memset(base + BytesOf(range.begin, dtype), 0, static_cast<size_t>(BytesOf(range.count, dtype)));
  }
}

}  // namespace

absl::Status ParamGroup::PrepareGradients() {
  WEFT_RETURN_IF_ERROR(CheckFrozenUnchanged());
  if (gradient_image_ || layout_.frozen()) return absl::OkStatus();
  const DType dtype = dtypes_.gradient_dtype();
  const int64_t bytes = BytesOf(layout_.gradient_image_elements(), dtype);
  WEFT_ASSIGN_OR_RETURN(gradient_image_, context_.AcquireGradients(static_cast<size_t>(bytes)));
  Zero(gradient_image_.data(), dtype, layout_.GradientImageGaps());
  ViewGradients(parameters_, {layout_, gradient_image_.data(), dtype});
  return absl::OkStatus();
}

absl::Status ParamGroup::CheckFrozenUnchanged() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->requires_grad || layout_.parameters()[i].trainable) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter '", parameters_[i]->name, "' of group '", name_,
        "' requires a gradient, but was frozen when the group was made, and has no place for one: "
        "set requires_grad before sharding, or shard the model anew"));
  }
  return absl::OkStatus();
}

absl::Status ParamGroup::ReduceGradients(ReduceScope scope) {
  WEFT_RETURN_IF_ERROR(context_.status());
  if (layout_.frozen()) return absl::OkStatus();
  if (!gradient_image_) {
    return absl::FailedPreconditionError(
        absl::StrCat("parameter group '", name_,
                     "' has no gradients to reduce: call PrepareGradients, and then run backward"));
  }
  const FlatImage image{layout_, gradient_image_.data(), dtypes_.gradient_dtype()};
  WEFT_ASSIGN_OR_RETURN(const FallbackReport report, CollectGradients(parameters_, image));
  context_.CountCopy(report.copied_bytes);
  if (fallback_reason_.empty()) fallback_reason_ = report.reason;
  const DivideScales scales = SpreadDivision(policy_.gradient_divide_factor, dtypes_.reduce);
  WEFT_ASSIGN_OR_RETURN(Buffer input, TakeReduceInput(scales.before));
  ForgetGradients(parameters_);
  if (sums_ == nullptr) sums_ = std::make_shared<GradientSums>();
  std::vector<int64_t> counts;
  counts.reserve(static_cast<size_t>(layout_.shard_size()));
  for (int rank = 0; rank < layout_.shard_size(); ++rank) counts.push_back(layout_.reduced_elements(rank));
  return context_.Reduce({name_, dtypes_.reduce, scope, std::move(input), std::move(counts), slices_,
                          scales.after, sums_, gradient_hook_, reduce_scatter_});
}

absl::Status ParamGroup::CountGradientsAsZero() {
  if (layout_.frozen() || has_gradients()) return absl::OkStatus();
  const int64_t bytes = BytesOf(UpdatedElements(slices_), DType::kF32);
  auto sums = std::make_shared<GradientSums>();
  WEFT_ASSIGN_OR_RETURN(sums->reduced, context_.AcquireShard(static_cast<size_t>(bytes)));
  std::memset(sums->reduced.data(), 0, sums->reduced.bytes());
  sums_ = std::move(sums);
  return absl::OkStatus();
}

absl::StatusOr<Buffer> ParamGroup::TakeReduceInput(float scale) {
  const DType from = dtypes_.gradient_dtype();
  const DType to = dtypes_.reduce;
  if (policy_.zero_copy && from == to) return std::move(gradient_image_);
  const int64_t bytes = BytesOf(layout_.reduced_elements(), to);
  WEFT_ASSIGN_OR_RETURN(Buffer input, context_.AcquireGradients(static_cast<size_t>(bytes)));
  if (policy_.zero_copy) {
    ConvertRun(gradient_image_.data(), from, input.data(), to, layout_.reduced_elements(), scale);
    context_.CountCopy(bytes);
  } else {
    for (int rank = 0; rank < layout_.shard_size(); ++rank) {
      Zero(input.data() + BytesOf(layout_.reduced_offset(rank), to), to, layout_.ReducedGaps(rank));
    }
    context_.CountCopy(RunCopies(copy_in_, gradient_image_.data(), input.data(), scale));
  }
  gradient_image_.Reset();
  return input;
}

absl::Status ParamGroup::CheckGradientsReduced() const {
  const auto unfinished = [this](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat("parameter group '", name_, "' ", ToAbsl(what)));
  };
  if (layout_.frozen()) return absl::OkStatus();
  if (gradient_image_) {
    return unfinished(
        "has unreduced gradients: run the last backward with gradient sync on before clipping or updating");
  }
  if (sums_ == nullptr) {
    return unfinished(
        "has no reduced gradients: run backward with gradient sync on before clipping or updating");
  }
  if (sums_->under_way > 0) {
    return unfinished(
        "has reductions under way: call CommContext::FinishBackward (mark the last backward) before "
        "using its gradients");
  }
  if (sums_->partial) {
    return unfinished(
        "has gradients that are summed over its shard group only: run the last backward with "
        "all-reduce on (ReduceScope::kShardAndReplicate) before using them");
  }
  return absl::OkStatus();
}

void ParamGroup::ZeroGradients() {
  if (gradient_image_) ForgetGradients(parameters_);
  gradient_image_.Reset();
  sums_.reset();
}

}  // namespace weft
