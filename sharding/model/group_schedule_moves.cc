// Moves of single groups in a schedule: gathers, reshards and reductions.
#include <iterator>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>

#include "sharding/model/group_schedule.h"
#include "weft/core/status.h"

namespace weft {

bool GroupSchedule::BeginsForward(int group) const {
  std::vector<int> after_root = training_.First(group_count());
  after_root.erase(after_root.begin());
  return group == kRootGroup ||
         absl::c_linear_search(PrefetchesOf(PassPart::kForward, kRootGroup, after_root), group);
}

std::vector<int> GroupSchedule::PrefetchesOf(PassPart part, int group, const std::vector<int>& next) const {
  const PrefetchLists& chosen = part == PassPart::kBackward ? backward_prefetch_ : forward_prefetch_;
  const auto list = chosen.find(group);
  return list != chosen.end() ? list->second : rules_->GathersAhead(part, group, next);
}

bool GroupSchedule::ReshardsAfterForward(int group) const {
  if (!switches(group).reshard_after_forward) return false;
  return group == kRootGroup || !StaysUnsharded(group);
}

bool GroupSchedule::StaysUnsharded(int group) const {
  return StaysUnshardedForBackward(*pass_, backward_, group, prefetch_depth_) &&
         switches(group).unshard_in_backward;
}

bool GroupSchedule::NeedsParameters(int group) const {
  return !in_backward_ || switches(group).unshard_in_backward;
}

absl::Status GroupSchedule::Unshard(int group, Priority priority) {
  const ParamGroup::State state = GroupAt(group).state();
  const bool gathers =
      state == ParamGroup::State::kSharded || state == ParamGroup::State::kShardedAfterForward;
  WEFT_RETURN_IF_ERROR(GroupAt(group).Unshard(priority));
  if (gathers) Notify(ScheduleEvent::kUnshard, group);
  return absl::OkStatus();
}

absl::Status GroupSchedule::Wait(int group) {
  const bool waits = GroupAt(group).state() == ParamGroup::State::kUnsharding;
  WEFT_RETURN_IF_ERROR(GroupAt(group).WaitUnshard());
  if (waits) Notify(ScheduleEvent::kWait, group);
  return absl::OkStatus();
}

absl::Status GroupSchedule::Prefetch(int group) {
  for (const int next : PrefetchesOf(part(), group, pass_->Next(group_count()))) {
    if (next < 0 || next >= group_count()) {
      return absl::InvalidArgumentError(absl::StrCat("the rules of the schedule gather group ", next,
                                                     " ahead, but there are ", group_count(), " groups"));
    }
    if (!NeedsParameters(next)) continue;
    WEFT_RETURN_IF_ERROR(Unshard(next, rules_->GatherPriority(part(), next)));
  }
  return backward_follows_ && !in_backward_ ? PrefetchForBackward() : absl::OkStatus();
}

absl::Status GroupSchedule::PrefetchForBackward() {
  if (!shares_images_on_nodes_) return absl::OkStatus();
  for (const int next : PrefetchAcrossBackwardStart(*pass_, backward_, prefetch_depth_)) {
    if (!switches(next).unshard_in_backward) continue;
    WEFT_RETURN_IF_ERROR(Unshard(next, rules_->GatherPriority(PassPart::kBackward, next)));
  }
  return absl::OkStatus();
}

absl::Status GroupSchedule::Reshard(int group, absl::Status (ParamGroup::*how)()) {
  const bool reshards = GroupAt(group).state() == ParamGroup::State::kUnsharded;
  WEFT_RETURN_IF_ERROR((GroupAt(group).*how)());
  if (reshards) Notify(ScheduleEvent::kReshard, group);
  return absl::OkStatus();
}

absl::Status GroupSchedule::ReduceByRules(int group) {
  complete_.push_back(group);
  for (const int due : rules_->Reductions(group, complete_)) {
    const auto found = absl::c_find(complete_, due);
    if (found == complete_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the rules of the schedule reduce group ", due, " after the backward of '", GroupAt(group).name(),
          "', but its gradients are not complete, or reduced already: choose groups of `complete`"));
    }
    complete_.erase(found);
    WEFT_RETURN_IF_ERROR(Reduce(due));
  }
  return absl::OkStatus();
}

absl::Status GroupSchedule::Reduce(int group) {
  if (!switches(group).gradient_sync) {
    GroupAt(group).KeepGradients();
    return absl::OkStatus();
  }
  ProgressOf(group).is_reduced = true;
  return Reduce(group, switches(group).all_reduce ? ReduceScope::kShardAndReplicate : ReduceScope::kShard);
}

absl::Status GroupSchedule::Reduce(int group, ReduceScope scope) {
  if (skips_unused_) GroupAt(group).AwaitUsedParameters();
  WEFT_RETURN_IF_ERROR(GroupAt(group).PrepareGradients());
  WEFT_RETURN_IF_ERROR(GroupAt(group).ReduceGradients(scope, rules_->ReductionPriority(group)));
  Notify(ScheduleEvent::kReduce, group);
  return absl::OkStatus();
}

absl::Status GroupSchedule::ReduceGradients() {
  if (in_backward_ || ProgressOf(kRootGroup).running > 0) {
    return absl::FailedPreconditionError(absl::StrCat("gradients of '", GroupAt(kRootGroup).name(),
                                                      "' cannot be reduced inside of a pass: do so after "
                                                      "backward, or switch gradient sync on before it"));
  }
  // A rank that has skipped a block has no gradient of it, but takes part.
  std::vector<bool> due;
  for (const auto& group : groups_) {
    due.push_back(group->has_unreduced_gradients() || group->has_partial_sum());
  }
  WEFT_RETURN_IF_ERROR(scalars_.AnyOnAllRanks("groups with unreduced gradients", due));
  // Otherwise no backward has run, or its gradients are freed already. The same on all ranks.
  const auto has_gradients = [](const auto& group) { return group->has_gradients_of_any_rank(); };
  const bool is_after_backward = absl::c_linear_search(due, true) || absl::c_any_of(groups_, has_gradients);
  for (int group = 0; group < group_count(); ++group) {
    if (due[static_cast<size_t>(group)]) {
      WEFT_RETURN_IF_ERROR(Reduce(group, ReduceScope::kShardAndReplicate));
    } else if (is_after_backward) {
      WEFT_RETURN_IF_ERROR(GroupAt(group).CountGradientsAsZero());
    }
  }
  if (skips_unused_) WEFT_RETURN_IF_ERROR(AgreeOnUsedParameters());
  return FinishReading();
}

// If no rank calls a group, its gradient is that of earlier microbatches, or zero. Once ranks have agreed on
// the order, all of them know this, and a zero need not be exchanged, nor a sum over all ranks. All ranks
// call a group outside of the order alike; its gradients may be complete and wait for their reduction by the
// rules.
absl::Status GroupSchedule::ReduceUnvisited(int group) {
  const PassEvent end{group, PassEvent::Kind::kEnd};
  const bool is_visited =
      absl::c_linear_search(pass_->expected(), end) || absl::c_linear_search(complete_, group);
  if (is_visited || !pass_->settled() || GroupAt(group).has_gradients_to_reduce()) return Reduce(group);
  return switches(group).gradient_sync ? GroupAt(group).CountGradientsAsZero() : absl::OkStatus();
}

bool GroupSchedule::HasLateGradient(int group) const {
  return switches(group).gradient_sync && GroupAt(group).has_unreduced_gradients();
}

absl::Status GroupSchedule::CheckNoneIsLate() const {
  for (int number = 0; number < group_count(); ++number) {
    if (!HasLateGradient(number)) continue;
    const ParamGroup& group = GroupAt(number);
    const std::vector<bool> written = group.UnreducedGradients();
    const auto found = absl::c_find(written, true);
    const auto first = found == written.end() ? 0 : static_cast<size_t>(found - written.begin());
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient of parameter '", group.parameters()[first]->name, "' came after group '", group.name(),
        "' was reduced, and with unused_gradients kZero ranks do not agree on whether it did: set it to "
        "kNone (without updates in backward), or use the parameter in its group alone"));
  }
  return absl::OkStatus();
}

// Reductions are under way meanwhile.
absl::Status GroupSchedule::AgreeOnUsedParameters() {
  std::vector<bool> flags;  // For each group: whether it has a late gradient, and its used parameters.
  for (int group = 0; group < group_count(); ++group) {
    const bool is_late = HasLateGradient(group);
    std::vector<bool> used = GroupAt(group).WrittenGradients();
    if (is_late) {
      const std::vector<bool> late = GroupAt(group).UnreducedGradients();
      for (size_t i = 0; i < used.size(); ++i) used[i] = used[i] || late[i];
    }
    flags.push_back(is_late);
    flags.insert(flags.end(), used.begin(), used.end());
  }
  WEFT_RETURN_IF_ERROR(scalars_.AnyOnAllRanks("used parameters", flags));
  auto flag = flags.begin();
  for (int group = 0; group < group_count(); ++group) {
    const bool is_late = *flag++;
    const auto first = std::exchange(flag, flag + std::ssize(GroupAt(group).parameters()));
    if (is_late) WEFT_RETURN_IF_ERROR(Reduce(group));
    GroupAt(group).SetUsedParameters({first, flag});
  }
  return absl::OkStatus();
}

absl::Status GroupSchedule::FinishPrefetches() {
  for (int group = 0; group < group_count(); ++group) {
    if (GroupAt(group).state() == ParamGroup::State::kUnsharding) WEFT_RETURN_IF_ERROR(Wait(group));
  }
  return absl::OkStatus();
}

absl::Status GroupSchedule::ReshardAll() {
  WEFT_RETURN_IF_ERROR(FinishPrefetches());
  for (int group = 0; group < group_count(); ++group) WEFT_RETURN_IF_ERROR(Reshard(group));
  return absl::OkStatus();
}

void GroupSchedule::Notify(ScheduleEvent event, int group) {
  if (observer_) observer_(event, GroupAt(group).name());
}

}  // namespace weft
