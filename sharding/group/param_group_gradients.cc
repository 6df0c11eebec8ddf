// Gradients of a parameter group, from the views that backward writes to the reduced sum.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <absl/algorithm/container.h>

#include "sharding/group/param_group.h"
#include "sharding/plan/divide_factors.h"
#include "sharding/plan/parameter_views.h"
#include "sharding/plan/shard_copies.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

constexpr std::string_view kNotLastBackward =
    "has reductions under way: mark the last backward (SetIsLastBackward) before using its gradients";

void Zero(std::byte* base, DType dtype, const std::vector<FlatRange>& ranges) {
  for (const FlatRange& range : ranges) {
    std::memset(base + BytesOf(range.begin, dtype), 0, static_cast<size_t>(BytesOf(range.count, dtype)));
  }
}

}  // namespace

absl::Status ParamGroup::PrepareGradients() {
  WEFT_RETURN_IF_ERROR(CheckFrozenHaveNoPlace());
  if (is_frozen()) return absl::OkStatus();
  const DType dtype = dtypes().gradient_dtype();
  if (!gradient_image_) {
    const int64_t bytes = BytesOf(layout().gradient_image_elements(), dtype);
    WEFT_ASSIGN_OR_RETURN(gradient_image_, context_.memory().AcquireGradients(static_cast<size_t>(bytes)));
    Zero(gradient_image_.data(), dtype, layout().GradientImageGaps());
    ForgetGradients(parameters());
  }
  ViewGradients(parameters(), {layout(), gradient_image_.data(), dtype});
  return absl::OkStatus();
}

bool ParamGroup::is_frozen() const {
  for (size_t i = 0; i < parameters().size(); ++i) {
    if (parameters()[i]->requires_grad && layout().parameters()[i].trainable) return false;
  }
  return true;
}

absl::Status ParamGroup::CheckFrozenHaveNoPlace() const {
  for (size_t i = 0; i < parameters().size(); ++i) {
    if (!parameters()[i]->requires_grad || layout().parameters()[i].trainable) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter '", parameters()[i]->name, "' of group '", name(),
        "' requires a gradient, but was frozen when the group was made, and has no place for one: "
        "set requires_grad before sharding, or select the parameter in ShardingPolicy::trained_later"));
  }
  return absl::OkStatus();
}

absl::Status ParamGroup::ReduceGradients(ReduceScope scope, Priority priority) {
  WEFT_RETURN_IF_ERROR(context_.state().status());
  if (is_frozen()) return absl::OkStatus();
  if (!gradient_image_) {
    return absl::FailedPreconditionError(
        absl::StrCat("parameter group '", name(),
                     "' has no gradients to reduce: call PrepareGradients, and then run backward"));
  }
  const FlatImage image{layout(), gradient_image_.data(), dtypes().gradient_dtype()};
  const std::vector<bool> written = GradientsWritten(parameters(), image);
  WEFT_ASSIGN_OR_RETURN(const int64_t copied_bytes, CollectGradients(parameters(), image));
  for (size_t i = 0; i < written.size(); ++i) written_[i] = written_[i] || written[i];
  keeps_gradients_ = false;
  if (!awaits_used_) used_.assign(used_.size(), true);  // Forgotten parameters have gradients again.
  context_.state().CountCopy(copied_bytes);
  const DivideScales scales = ChooseScales();
  WEFT_ASSIGN_OR_RETURN(Buffer input, TakeReduceInput(scales.before));
  ForgetGradients(parameters());
  if (sums_ == nullptr) sums_ = std::make_shared<GradientSums>();
  has_forgotten_all_ = false;
  reduction_epoch_ = context_.epochs().current();
  std::vector<int64_t> counts;
  counts.reserve(static_cast<size_t>(layout().shard_size()));
  for (int rank = 0; rank < layout().shard_size(); ++rank) counts.push_back(layout().reduced_elements(rank));
  return context_.reductions().Submit({&lanes(), name(), dtypes().reduce, dtypes().master, scope, priority,
                                       std::move(input), spec_.gradient_parts, std::move(counts), slices_,
                                       scales.after, sums_, gradient_hook_, reduced_hook_, reduce_scatter_});
}

DivideScales ParamGroup::ChooseScales() {
  const DivideScales scales = SpreadDivision(gradient_divide_factor_, dtypes().reduce);
  if (!has_partial_sum()) partial_scale_ = scales.before;
  return {partial_scale_, scales.after * (scales.before / partial_scale_)};
}

std::vector<bool> ParamGroup::UnreducedGradients() const {
  if (!gradient_image_) return std::vector<bool>(parameters().size(), false);
  return GradientsWritten(parameters(), {layout(), gradient_image_.data(), dtypes().gradient_dtype()});
}

absl::Status ParamGroup::CountGradientsAsZero() {
  keeps_gradients_ = false;
  if (is_frozen() || sums_ != nullptr) return absl::OkStatus();
  const int64_t bytes = BytesOf(UpdatedElements(slices_), dtypes().master);
  auto sums = std::make_shared<GradientSums>();
  WEFT_ASSIGN_OR_RETURN(sums->reduced, context_.memory().AcquireShard(static_cast<size_t>(bytes)));
  std::memset(sums->reduced.data(), 0, sums->reduced.bytes());
  sums_ = std::move(sums);
  has_forgotten_all_ = false;
  return absl::OkStatus();
}

absl::StatusOr<Buffer> ParamGroup::TakeReduceInput(double scale) {
  const DType from = dtypes().gradient_dtype();
  const DType to = dtypes().reduce;
  const int64_t elements =
      spec_.is_zero_copy() ? layout().gradient_image_elements() : layout().reduced_elements();
  if (spec_.is_zero_copy() && from == to) {
    if (scale != 1.0) ConvertRun(gradient_image_.data(), from, gradient_image_.data(), to, elements, scale);
    return std::move(gradient_image_);
  }
  const int64_t bytes = BytesOf(elements, to);
  WEFT_ASSIGN_OR_RETURN(Buffer input, context_.memory().AcquireGradients(static_cast<size_t>(bytes)));
  if (spec_.is_zero_copy()) {
    ConvertRun(gradient_image_.data(), from, input.data(), to, elements, scale);
    context_.state().CountCopy(bytes);
  } else {
    for (int rank = 0; rank < layout().shard_size(); ++rank) {
      Zero(input.data() + BytesOf(layout().reduced_offset(rank), to), to, layout().ReducedGaps(rank));
    }
    context_.state().CountCopy(RunCopies(copy_in_, gradient_image_.data(), input.data(), scale));
  }
  gradient_image_.Reset();
  return input;
}

absl::Status ParamGroup::CheckGradientsReduced() const {
  const auto unfinished = [this](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat("parameter group '", name(), "' ", ToAbsl(what)));
  };
  if (is_frozen()) return absl::OkStatus();
  if (gradient_image_ || keeps_gradients_) {
    return unfinished(gradient_image_ ? "has unreduced gradients: run the last backward with gradient sync "
                                        "on before clipping or updating"
                                      : "ran its last backward without gradient sync, so that other ranks "
                                        "may have unreduced gradients: "
                                        "reduce them (ReduceGradients) before clipping or updating");
  }
  if (sums_ == nullptr && !has_forgotten_all_) {
    return unfinished(
        "has no reduced gradients: run backward with gradient sync on before clipping or updating");
  }
  if (has_reductions_under_way()) return unfinished(kNotLastBackward);
  if (sums_ != nullptr && sums_->partial) {
    return unfinished(
        "has gradients that are summed over its shard group only: run the last backward with all-reduce on "
        "(SetRequiresAllReduce) before using them");
  }
  if (awaits_used_) return unfinished(kNotLastBackward);
  return absl::OkStatus();
}

absl::Status ParamGroup::TakeArrivedGradients() {
  if (sums_ != nullptr && sums_->under_way == 0) reduction_epoch_.reset();
  return CheckGradientsReduced();
}

void ParamGroup::ZeroGradients() {
  if (gradient_image_) ForgetGradients(parameters());
  gradient_image_.Reset();
  sums_.reset();
  has_forgotten_all_ = false;
  written_.assign(written_.size(), false);
  used_.assign(used_.size(), true);
  awaits_used_ = false;
  keeps_gradients_ = false;
  reduction_epoch_.reset();
}

std::vector<bool> ParamGroup::WithPlace(const std::function<bool(const Parameter&)>& selects) const {
  std::vector<bool> selected(parameters().size(), false);
  for (size_t i = 0; i < selected.size(); ++i) {
    selected[i] = layout().parameters()[i].trainable && selects(*parameters()[i]);
  }
  return selected;
}

absl::Status ParamGroup::CheckCanForget(const std::function<bool(const Parameter&)>& selects) const {
  const bool is_under_way = has_reductions_under_way() || (has_reduced_sum() && awaits_used_);
  if (!is_under_way || !absl::c_linear_search(WithPlace(selects), true)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("parameter group '", name(), "' ", ToAbsl(kNotLastBackward)));
}

absl::Status ParamGroup::ForgetReducedGradients(const std::function<bool(const Parameter&)>& selects) {
  WEFT_RETURN_IF_ERROR(CheckCanForget(selects));
  const std::vector<bool> forgotten = WithPlace(selects);
  if (!has_reduced_sum() || !absl::c_linear_search(forgotten, true)) return absl::OkStatus();
  // The same on all ranks, unlike the gradients that this rank has written.
  bool keeps_some = false;
  std::vector<bool> kept = used_;
  std::vector<bool> written = written_;
  for (size_t i = 0; i < parameters().size(); ++i) {
    const Parameter& parameter = *parameters()[i];
    if (!layout().parameters()[i].trainable) continue;
    if (!forgotten[i]) {
      keeps_some = keeps_some || (used_[i] && parameter.requires_grad);
      continue;
    }
    kept[i] = false;
    written[i] = written[i] && sums_->partial;
  }
  auto sums = std::make_shared<GradientSums>();  // Holders keep the memory of the old ones.
  if (keeps_some) {
    const int64_t bytes = BytesOf(UpdatedElements(slices_), dtypes().master);
    WEFT_ASSIGN_OR_RETURN(sums->reduced, context_.memory().AcquireShard(static_cast<size_t>(bytes)));
    std::copy_n(sums_->reduced.data(), bytes, sums->reduced.data());
  }
  sums->partial = std::move(sums_->partial);
  sums->has_partial = sums_->has_partial;
  written_ = std::move(written);
  has_forgotten_all_ = !keeps_some && !sums->partial;
  sums_ = has_forgotten_all_ ? nullptr : std::move(sums);
  if (keeps_some) {
    ZeroReducedGradients(forgotten);
    used_ = std::move(kept);
  } else {
    used_.assign(used_.size(), true);
  }
  return absl::OkStatus();
}

void ParamGroup::ZeroReducedGradients(const std::vector<bool>& forgotten) {
  // Also of a sum that CheckGradientsReduced keeps back.
  for (const MasterView& shard : MastersWith(forgotten)) {
    if (shard.grad != nullptr) Zero(shard.grad, dtypes().master, {{0, shard.elements()}});
  }
}

void ParamGroup::SetUsedParameters(std::vector<bool> used) {
  used_ = std::move(used);
  awaits_used_ = false;
}

}  // namespace weft
