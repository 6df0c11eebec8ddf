#include "sharding/model/backward_updates.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <absl/strings/str_cat.h>

#include "sharding/model/grad_norm.h"
#include "weft/core/status.h"

namespace weft {

std::shared_ptr<BackwardUpdates> BackwardUpdates::Begin(CommContext& context, Groups groups,
                                                        ShardUpdate update, std::vector<ClipSet> sets) {
  std::shared_ptr<BackwardUpdates> updates(
      new BackwardUpdates(context, groups, std::move(update), std::move(sets)));
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i]->SetReducedHook([weak = updates->weak_from_this(), i, &name = groups[i]->name()] {
      const std::shared_ptr<BackwardUpdates> live = weak.lock();
      if (live != nullptr) return live->Update(i);
      return absl::FailedPreconditionError(absl::StrCat(
          "the gradient of parameter group '", name,
          "' was reduced for updates in backward that have ended: mark their backward as the last one "
          "(SetIsLastBackward), and call FinishUpdatesInBackward after it"));
    });
  }
  return updates;
}

BackwardUpdates::BackwardUpdates(CommContext& context, Groups groups, ShardUpdate update,
                                 std::vector<ClipSet> sets)
    : context_(context),
      groups_(groups),
      update_(std::move(update)),
      sets_(std::move(sets)),
      squares_(sets_.size()),
      updated_(groups.size(), false) {}

BackwardUpdates::~BackwardUpdates() {
  for (const auto& group : groups_) group->SetReducedHook(nullptr);
}

absl::Status BackwardUpdates::Update(size_t number) {
  ParamGroup& group = *groups_[number];
  if (updated_[number]) {
    return absl::FailedPreconditionError(
        absl::StrCat("a gradient of parameter group '", group.name(),
                     "' came after its update in backward: update it after the backward instead"));
  }
  updated_[number] = true;
  WEFT_RETURN_IF_ERROR(group.TakeArrivedGradients());
  AddSquares(group, sets_, squares_);
  const bool is_finite = std::all_of(squares_.begin(), squares_.end(), [](const ReproducibleSum& sum) {
    return std::isfinite(TwoNormOf(sum));
  });
  if (is_finite) {
    const absl::Status updated = update_(group.Shards());
    if (!updated.ok()) return Annotate(updated, absl::StrCat("update of '", group.name(), "'"));
  }
  group.ZeroGradients();
  return absl::OkStatus();
}

absl::Status BackwardUpdates::UpdateRest() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (updated_[i] || groups_[i]->layout().frozen()) continue;
    const absl::Status updated = Update(i);
    if (!updated.ok()) return context_.state().Fail(updated);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GradientNorm>> BackwardUpdates::Norms(ModelScalars& scalars) const {
  return NormsOfSquares(squares_, sets_, scalars);
}

}  // namespace weft
