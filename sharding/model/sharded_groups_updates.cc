// Shards of a model as loaders and optimizers see them: views, updates, and the gradients that are left.
#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "sharding/group/exchange_lists.h"
#include "sharding/group/param_group.h"
#include "sharding/model/backward_updates.h"
#include "sharding/model/group_schedule.h"
#include "sharding/model/model_scalars.h"
#include "weft/core/status.h"
#include "weft/mesh/process_group.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {

std::vector<ShardView> ShardedGroups::Shards() const {
  std::vector<ShardView> shards;
  for (const auto& group : groups_) {
    for (ShardView& shard : group->Shards()) shards.push_back(shard);
  }
  return shards;
}

std::vector<ShardView> ShardedGroups::Shards(int number) const { return group(number).Shards(); }

std::vector<MasterView> ShardedGroups::Masters(int number) const { return group(number).Masters(); }

absl::Status ShardedGroups::CheckMastersAreF32() const {
  for (const auto& group : groups_) {
    if (group->dtypes().master == DType::kF32) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter group '", group->name(), "' has ", ToAbsl(Name(group->dtypes().master)),
                     " masters: call BeginWriting, and write them through Masters"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ShardView>> ShardedGroups::CurrentShards() {
  WEFT_RETURN_IF_ERROR(CheckMastersAreF32());
  for (const auto& group : groups_) WEFT_RETURN_IF_ERROR(group->AllGatherUpdates(Priority::kCritical));
  std::vector<ShardView> shards;
  for (const auto& group : groups_) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> current, group->CurrentShards());
    shards.insert(shards.end(), current.begin(), current.end());
  }
  return shards;
}

absl::Status ShardedGroups::UpdateShards(const ShardUpdate& update) {
  WEFT_RETURN_IF_ERROR(CheckMastersAreF32());
  WEFT_RETURN_IF_ERROR(context_->epochs().is_read() ? BeginWriting() : schedule_->BeginWriting());
  is_updating_ = true;
  for (int number = 0; number < static_cast<int>(groups_.size()); ++number) {
    absl::Status updated = group(number).Update(update);
    if (updated.ok()) updated = schedule_->AfterUpdate(number);
    WEFT_RETURN_IF_ERROR(FailOnError(updated, "update", number));
  }
  is_updating_ = false;
  ++updates_;
  return absl::OkStatus();
}

absl::Status ShardedGroups::CompareUpdates() {
  CommEngine& engine = context_->state().engine();
  const std::vector<int64_t> own = {updates_, updates_ + (is_updating_ ? 1 : 0)};  // Completed and begun.
  WEFT_ASSIGN_OR_RETURN(const auto counts,
                        ExchangeLists<int64_t>(engine.bootstrap(), "updates", own, engine.timeout()));
  for (const std::vector<int64_t>& of_rank : counts) updates_ = std::max(updates_, of_rank[1]);
  is_updating_ = false;
  std::vector<int> late;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank][0] < updates_) late.push_back(static_cast<int>(rank));
  }
  if (late.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the last update of '", name(kRootGroup), "' is missing or incomplete on ", RankList(late),
                   ": the weights of the ranks may be of different steps, so load the weights and the "
                   "optimizer's states on all ranks, then go on"));
}

absl::Status ShardedGroups::BeginUpdatesInBackward(ShardUpdate update, std::vector<ClipSet> sets) {
  WEFT_RETURN_IF_ERROR(CheckMastersAreF32());
  if (policy_.unused_gradients != UnusedGradients::kZero) {
    return absl::FailedPreconditionError(
        "updates in backward come before ranks agree on the parameters that were used: set "
        "ShardingPolicy::unused_gradients to kZero");
  }
  for (const ClipSet& set : sets) {
    if (set.max_norm == kNoClipping) continue;
    return absl::InvalidArgumentError(
        "updates in backward come before the norm of all gradients is known: set max_norm to "
        "kNoClipping");
  }
  ShardUpdate counted = [this, update = std::move(update)](absl::Span<const ShardView> shards) {
    is_updating_ = true;
    return update(shards);
  };
  backward_updates_.reset();  // Before the next one, which sets the groups' hooks.
  backward_updates_ = BackwardUpdates::Begin(*context_, groups_, std::move(counted), std::move(sets));
  return absl::OkStatus();
}

absl::Status ShardedGroups::CheckUpdatesAreInLastBackward() const {
  if (backward_updates_ == nullptr || schedule_->is_last_backward()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "updates in a backward that is not the last one: mark it as the last (SetIsLastBackward), or call "
      "BeginUpdatesInBackward before a later backward");
}

absl::StatusOr<std::vector<GradientNorm>> ShardedGroups::FinishUpdatesInBackward() {
  if (backward_updates_ == nullptr) {
    return absl::FailedPreconditionError(
        "there are no updates in backward: call BeginUpdatesInBackward first");
  }
  const std::shared_ptr<BackwardUpdates> updates = std::move(backward_updates_);
  WEFT_RETURN_IF_ERROR(updates->UpdateRest());
  WEFT_ASSIGN_OR_RETURN(std::vector<GradientNorm> norms, updates->Norms(*scalars_));
  // Sends the updates.
  WEFT_RETURN_IF_ERROR(UpdateShards([](absl::Span<const ShardView>) { return absl::OkStatus(); }));
  return norms;
}

absl::Status ShardedGroups::BeginWriting() {
  WEFT_RETURN_IF_ERROR(schedule_->BeginWriting());
  return schedule_->FinishReading();
}

bool ShardedGroups::are_shards_read() const { return context_->epochs().is_read(); }

absl::Status ShardedGroups::PrepareWrites() {
  if (are_shards_read()) return BeginWriting();
  // The error of a peer may come after this rank's backward: the update is still due.
  static_cast<void>(schedule_->BeginWriting());
  return absl::OkStatus();
}

absl::Status ShardedGroups::ForgetReducedGradients(const std::function<bool(const Parameter&)>& selects) {
  for (int number = 0; number < group_count(); ++number) {
    WEFT_RETURN_IF_ERROR(group(number).CheckCanForget(selects));
  }
  for (int number = 0; number < group_count(); ++number) {
    const absl::Status forgotten = group(number).ForgetReducedGradients(selects);
    // Other ranks have no error if memory is short on this one.
    if (absl::IsResourceExhausted(forgotten)) return FailOnError(forgotten, "forgotten gradients", number);
    WEFT_RETURN_IF_ERROR(forgotten);
  }
  return absl::OkStatus();
}

std::vector<bool> ShardedGroups::ReducedParameters(int number) const {
  return group(number).ReducedParameters();
}

std::vector<MasterView> ShardedGroups::ReducedSums(int number) const { return group(number).ReducedSums(); }

std::shared_ptr<const void> ShardedGroups::ReducedGradients(int number) const {
  return group(number).reduced_gradients();
}

}  // namespace weft
