#include "sharding/model/group_schedule.h"

#include <memory>
#include <utility>
#include <vector>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>
#include <absl/types/span.h>

#include "weft/core/status.h"

namespace weft {
namespace {

PassEvent Begins(int group) { return {group, PassEvent::Kind::kBegin}; }
PassEvent Ends(int group) { return {group, PassEvent::Kind::kEnd}; }

// By group: true if any of its shard groups spans nodes. The same on all ranks.
std::vector<bool> GroupsThatSpanNodes(const NodeMap& nodes,
                                      absl::Span<const std::unique_ptr<ParamGroup>> groups) {
  std::vector<bool> spans;
  for (const auto& group : groups) spans.push_back(SpanNodes(nodes, group->lanes().shard_group().size()));
  return spans;
}

}  // namespace

GroupSchedule::GroupSchedule(CommContext& context, ModelScalars& scalars, Groups groups,
                             std::vector<PassEvent> module_order, const ShardingPolicy& policy,
                             Residency residency)
    : context_(context),
      scalars_(scalars),
      groups_(groups),
      module_order_(std::move(module_order)),
      prefetch_depth_(policy.PrefetchDepth()),
      skips_unused_(policy.unused_gradients == UnusedGradients::kNone),
      shares_images_on_nodes_(residency == Residency::kNodeShared),
      spans_nodes_(GroupsThatSpanNodes(context.state().engine().bootstrap().node_map(), groups)),
      built_in_rules_(std::make_shared<PrefetchRules>(prefetch_depth_)),
      rules_(built_in_rules_),
      training_(module_order_),
      evaluation_(module_order_),
      backward_(Reversed(module_order_)),
      kept_(groups.size()),
      progress_(groups.size()) {
  switches_.assign(groups.size(), {.reshard_after_forward = policy.reshard_after_forward});
  switches(kRootGroup).reshard_after_forward = policy.reshard_root_after_forward;
}

void GroupSchedule::SetForwardPrefetch(int group, std::vector<int> next) {
  forward_prefetch_.insert_or_assign(group, std::move(next));
}

void GroupSchedule::SetBackwardPrefetch(int group, std::vector<int> next) {
  backward_prefetch_.insert_or_assign(group, std::move(next));
}

void GroupSchedule::SetRules(std::shared_ptr<const ScheduleRules> rules) {
  rules_ = std::move(rules);
  if (rules_ == nullptr) rules_ = built_in_rules_;
}

void GroupSchedule::ResetAfterError() {
  ForgetOrders();
  calls_.clear();
  outdated_.clear();
  progress_.assign(progress_.size(), {});
  awaits_backward_ = false;
  in_backward_ = false;
  ForgetKept();
}

void GroupSchedule::ForgetOrders() {
  training_ = ExecutionOrder(module_order_);
  evaluation_ = ExecutionOrder(module_order_);
  backward_ = ExecutionOrder(Reversed(module_order_));
  beside_training_.clear();
}

void GroupSchedule::ReshardKept() {
  for (int group = 0; group < group_count(); ++group) {
    if (!kept_[static_cast<size_t>(group)]) continue;
    ReleaseKept(group);
    if (GroupAt(group).state() == ParamGroup::State::kUnsharding) continue;
    WEFT_CHECK(Reshard(group).ok(), "an unsharded group cannot be resharded");
  }
}

absl::Status GroupSchedule::BeginWriting() {
  WEFT_RETURN_IF_ERROR(context_.state().status());
  ReshardKept();
  for (const auto& group : groups_) group->BeginWriting();
  for (const auto& [id, calls] : calls_) outdated_.insert(id);
  calls_.clear();
  return absl::OkStatus();
}

absl::Status GroupSchedule::FinishReading() {
  awaits_backward_ = false;
  ForgetKept();
  WEFT_RETURN_IF_ERROR(ReshardAll());
  return context_.FinishBackward();
}

absl::Status GroupSchedule::AfterUpdate(int group) {
  if (spans_nodes_[static_cast<size_t>(group)] && BeginsForward(group) &&
      GroupAt(group).state() == ParamGroup::State::kSharded) {
    return Unshard(group, rules_->GatherPriority(PassPart::kForward, group));
  }
  return GroupAt(group).AllGatherUpdates(Priority::kBulk);
}

// Outside of a pass nothing would reduce the group's gradients or end the time in which its shards are read.
absl::Status GroupSchedule::OutsideOfPass(int group, std::string_view part) const {
  const std::string& root = groups_[kRootGroup]->name();
  return absl::FailedPreconditionError(
      absl::StrCat(ToAbsl(part), " of '", groups_[static_cast<size_t>(group)]->name(), "' outside of a ",
                   ToAbsl(part), " of its root '", root, "': call it from '", root,
                   "', or shard it as a root of its own with FullyShard"));
}

absl::Status GroupSchedule::BeforeForward(int group, const SchedulePass& pass) {
  if (group == kRootGroup && !in_backward_) {
    WEFT_RETURN_IF_ERROR(BeginForward(pass));
  } else if (!in_backward_ && ProgressOf(kRootGroup).running == 0) {
    return OutsideOfPass(group, "forward");
  }
  ++ProgressOf(group).running;
  return BeginUse(group);
}

absl::Status GroupSchedule::AfterForward(int group, const SchedulePass& pass) {
  --ProgressOf(group).running;
  if (in_backward_) return absl::OkStatus();  // The group stays unsharded for its backward.
  if (pass.gradients) {
    std::vector<int>& calls = calls_[pass.id];
    calls.resize(groups_.size());
    ++calls[static_cast<size_t>(group)];
  }
  ++ProgressOf(group).calls;
  WEFT_RETURN_IF_ERROR(EndUse(group));
  return group == kRootGroup ? FinishForward(pass) : absl::OkStatus();
}

absl::Status GroupSchedule::BeforeBackward(int group, const SchedulePass& pass) {
  if (outdated_.contains(pass.id)) {
    return absl::FailedPreconditionError(
        absl::StrCat("backward of '", GroupAt(kRootGroup).name(),
                     "' after its shards were written: run the backward of a forward before its weights are "
                     "updated or loaded, or run the forward again"));
  }
  if (group == kRootGroup && in_backward_) return absl::OkStatus();
  if (group == kRootGroup) {
    WEFT_RETURN_IF_ERROR(BeginBackward(pass));
  } else if (!in_backward_) {
    return OutsideOfPass(group, "backward");
  }
  ++ProgressOf(group).running;
  WEFT_RETURN_IF_ERROR(BeginUse(group));
  return GroupAt(group).PrepareGradients();
}

absl::Status GroupSchedule::AfterBackward(int group) {
  GroupProgress& progress = ProgressOf(group);
  --progress.running;
  --progress.pending_backward;
  return EndUse(group);
}

absl::Status GroupSchedule::BeginUse(int group) {
  if (!ProgressOf(group).in_use) {
    SetInUse(group, true);
    return OnEvent(Begins(group));
  }
  if (in_backward_) return absl::OkStatus();
  // Another module of the group. The caller may have resharded it since the last one.
  WEFT_RETURN_IF_ERROR(Unshard(group, Priority::kCritical));
  return Wait(group);
}

void GroupSchedule::SetInUse(int group, bool in_use) {
  GroupProgress& progress = ProgressOf(group);
  progress.in_use = in_use;
  if (in_use && !in_backward_) progress.calls = 0;
}

bool GroupSchedule::IsLastCall(int group) const {
  const int modules = GroupAt(group).modules();
  const GroupProgress& progress = ProgressOf(group);
  if (modules == 1) return true;
  return progress.calls >= modules && (!in_backward_ || progress.pending_backward == 0);
}

absl::Status GroupSchedule::EndUse(int group) {
  if (group == kRootGroup) WEFT_RETURN_IF_ERROR(EndOpenUses());
  if (!IsLastCall(group)) return absl::OkStatus();
  SetInUse(group, false);
  return OnEvent(Ends(group));
}

absl::Status GroupSchedule::EndOpenUses() {
  for (int group = 0; group < group_count(); ++group) {
    if (GroupAt(group).modules() == 1 || !ProgressOf(group).in_use) continue;
    SetInUse(group, false);
    WEFT_RETURN_IF_ERROR(OnEvent(Ends(group)));
  }
  return absl::OkStatus();
}

absl::Status GroupSchedule::BeginForward(const SchedulePass& pass) {
  // Shards may have been written since a forward that got no backward. What it left unsharded is gathered
  // again.
  if (awaits_backward_) WEFT_RETURN_IF_ERROR(FinishReading());
  for (const auto& group : groups_) WEFT_RETURN_IF_ERROR(group->EndWriting());
  context_.BeginForward();
  pass_ = pass.gradients ? &training_ : &evaluation_;
  pass_->Begin();
  progress_.assign(progress_.size(), {});
  backward_follows_ = pass.gradients;
  ForgetKept();
  calls_.erase(pass.id);  // An abandoned pass may have had this id.
  outdated_.erase(pass.id);
  // Gathers of updates need no memory. Submitting all of them now keeps the wire busy.
  for (const int next : pass_->Next(group_count())) {
    WEFT_RETURN_IF_ERROR(GroupAt(next).AllGatherUpdates(Priority::kBulk));
  }
  return absl::OkStatus();
}

absl::Status GroupSchedule::FinishForward(const SchedulePass& pass) {
  WEFT_RETURN_IF_ERROR(AgreeOnOrder());
  if (!backward_.settled()) backward_ = ExecutionOrder(Reversed(training_.expected()));
  awaits_backward_ = pass.gradients;
  // Otherwise no backward will reshard what is still gathered, nor wait until no peer reads this rank's
  // shards.
  return pass.gradients ? absl::OkStatus() : FinishReading();
}

absl::Status GroupSchedule::BeginBackward(const SchedulePass& pass) {
  const auto calls = calls_.find(pass.id);
  if (calls == calls_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("backward of '", GroupAt(kRootGroup).name(),
                                                      "' without a forward of the same invocation"));
  }
  pass_ = &backward_;
  pass_->Begin();
  awaits_backward_ = false;
  in_backward_ = true;
  complete_.clear();
  progress_.assign(progress_.size(), {});
  for (int group = 0; group < group_count(); ++group) {
    ProgressOf(group).calls = calls->second[static_cast<size_t>(group)];
    ProgressOf(group).pending_backward = ProgressOf(group).calls;
  }
  return absl::OkStatus();
}

absl::Status GroupSchedule::FinishBackward() {
  in_backward_ = false;
  WEFT_RETURN_IF_ERROR(AgreeOnOrder());
  WEFT_RETURN_IF_ERROR(FinishPrefetches());
  for (int group = 0; group < group_count(); ++group) {
    const bool reshards = switches(group).reshard_after_backward;
    kept_[static_cast<size_t>(group)] = !reshards && GroupAt(group).state() != ParamGroup::State::kSharded;
    if (reshards) WEFT_RETURN_IF_ERROR(Reshard(group));
    if (!ProgressOf(group).is_reduced) WEFT_RETURN_IF_ERROR(ReduceUnvisited(group));
  }
  if (!is_last_backward_) return absl::OkStatus();
  const auto is_due = [](const GroupSwitches& group) { return group.gradient_sync && group.all_reduce; };
  if (absl::c_any_of(switches_, is_due)) {
    WEFT_RETURN_IF_ERROR(skips_unused_ ? AgreeOnUsedParameters() : CheckNoneIsLate());
  }
  return context_.FinishBackward();
}

absl::Status GroupSchedule::OnEvent(PassEvent event) {
  while (const std::optional<PassEvent> missed = pass_->TakeMissed(event)) {
    if (GroupAt(missed->group).modules() > 1) {
      SetInUse(missed->group, missed->kind == PassEvent::Kind::kBegin);
    }
    WEFT_RETURN_IF_ERROR(RunEvent(*missed));
  }
  pass_->Visit(event);
  return RunEvent(event);
}

absl::Status GroupSchedule::RunEvent(PassEvent event) {
  const int group = event.group;
  if (event.kind == PassEvent::Kind::kEnd) return in_backward_ ? EndBackwardOf(group) : EndForwardOf(group);
  if (NeedsParameters(group)) WEFT_RETURN_IF_ERROR(Unshard(group, Priority::kCritical));
  WEFT_RETURN_IF_ERROR(Prefetch(group));
  return NeedsParameters(group) ? Wait(group) : absl::OkStatus();
}

absl::Status GroupSchedule::EndForwardOf(int group) {
  if (ProgressOf(group).running > 0) return absl::OkStatus();
  if (!backward_follows_) return Reshard(group);
  return ReshardsAfterForward(group) ? Reshard(group, &ParamGroup::ReshardAfterForward) : absl::OkStatus();
}

// Gradients are complete, and parameters are not needed any more, when no call of this pass is left on any
// rank.
absl::Status GroupSchedule::EndBackwardOf(int group) {
  const GroupProgress& progress = ProgressOf(group);
  if (progress.running > 0 || progress.pending_backward > 0 || pass_->Expects(Ends(group))) {
    return absl::OkStatus();
  }
  WEFT_RETURN_IF_ERROR(ReduceByRules(group));
  return switches(group).reshard_after_backward ? Reshard(group) : absl::OkStatus();
}

absl::Status GroupSchedule::AgreeOnOrder() {
  if (pass_->settled()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const bool is_same,
                        scalars_.IsSameOnAllRanks("order of groups", HashOf(pass_->visited())));
  if (!is_same) {
    pass_->Settle(pass_->expected());
    return absl::OkStatus();
  }
  if (pass_ == &backward_) {
    pass_->Settle(WithGroups(pass_->visited(), beside_training_, Reversed(module_order_)));
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  for (const auto& group : groups_) names.push_back(group->name());
  std::vector<int> beside = UnvisitedBeside(pass_->visited(), module_order_, names);
  pass_->Settle(WithGroups(pass_->visited(), beside, module_order_));
  if (pass_ == &training_) beside_training_ = std::move(beside);
  return absl::OkStatus();
}

void GroupSchedule::Abandon(uintptr_t pass_id) {
  calls_.erase(pass_id);
  outdated_.erase(pass_id);
}

}  // namespace weft
