#include "sharding/model/module_hooks.h"

#include <utility>

#include <absl/algorithm/container.h>

#include "sharding/model/model_scalars.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kRoot = 0;

PassEvent Begins(int group) { return {group, PassEvent::Kind::kBegin}; }
PassEvent Ends(int group) { return {group, PassEvent::Kind::kEnd}; }

}  // namespace

ShardedModel::Hooks::Hooks(ShardedModel& model, std::vector<PassEvent> module_order)
    : model_(model),
      module_order_(std::move(module_order)),
      spans_nodes_(
          SpanNodes(model.context_->engine().bootstrap().node_map(), model.context_->shard_group().size())),
      training_(module_order_),
      evaluation_(module_order_),
      backward_(Reversed(module_order_)),
      groups_(model.groups_.size()) {
  for (int group = 0; group < static_cast<int>(model.modules_.size()); ++group) {
    Module* module = model.modules_[static_cast<size_t>(group)];
    const auto hook = [&](Step step, const char* place) { return Guarded(step, place, group); };
    for (const Module::HookId id :
         {module->AddForwardPreHook(hook(&Hooks::BeforeForward, "before forward")),
          module->AddForwardPostHook(hook(&Hooks::AfterForward, "after forward")),
          module->AddBackwardPreHook(hook(&Hooks::BeforeBackward, "before backward")),
          module->AddBackwardPostHook(hook(&Hooks::AfterBackward, "after backward"))}) {
      registered_.emplace_back(module, id);
    }
  }
  // Of what fails between the hooks, such as a layer, peers must learn as well.
  registered_.emplace_back(&model.root_, model.root_.AddErrorHook([this](Module&, const absl::Status& error) {
    model_.context_->Stop(error);
  }));
}

ShardedModel::Hooks::~Hooks() {
  for (const auto& [module, id] : registered_) module->RemoveHook(id);
}

void ShardedModel::Hooks::ResetAfterError() {
  ForgetOrders();
  calls_.clear();
  groups_.assign(groups_.size(), {});
  in_backward_ = false;
  kept_ = false;
}

void ShardedModel::Hooks::ForgetOrders() {
  training_ = ExecutionOrder(module_order_);
  evaluation_ = ExecutionOrder(module_order_);
  backward_ = ExecutionOrder(Reversed(module_order_));
}

void ShardedModel::Hooks::ForgetKept() {
  if (!std::exchange(kept_, false)) return;
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
    if (Params(group).state() == ParamGroup::State::kUnsharding) continue;
    WEFT_CHECK(Reshard(group).ok(), "an unsharded group cannot be resharded");
  }
}

absl::Status ShardedModel::Hooks::AfterUpdate(int group) {
  if (spans_nodes_ && BeginsForward(group) && Params(group).state() == ParamGroup::State::kSharded) {
    return Unshard(group, Priority::kPrefetch);
  }
  return Params(group).AllGatherUpdates(Priority::kBulk);
}

bool ShardedModel::Hooks::BeginsForward(int group) const {
  const std::vector<int> first = training_.First(1 + model_.policy_.PrefetchDepth());
  return group == kRoot || absl::c_linear_search(Ahead(model_.forward_prefetch_, kRoot, first), group);
}

std::vector<int> ShardedModel::Hooks::Ahead(const PrefetchLists& chosen, int group,
                                            std::vector<int> otherwise) {
  const auto list = chosen.find(group);
  return list != chosen.end() ? list->second : otherwise;
}

Module::Hook ShardedModel::Hooks::Guarded(Step step, const char* place, int group) {
  return [this, step, place, group](Module&, Invocation& invocation, Tensors&) {
    absl::Status status = (this->*step)(group, invocation);
    if (status.ok()) return status;
    return Annotate(model_.context_->Fail(status), absl::StrCat(place, " of '", Params(group).name(), "'"));
  };
}

absl::Status ShardedModel::Hooks::BeforeForward(int group, Invocation& invocation) {
  if (group == kRoot) WEFT_RETURN_IF_ERROR(BeginForward(invocation));
  ++At(group).running;
  // A recompute begins the group's part of backward, unless it has begun.
  if (in_backward_ && std::exchange(At(group).begun, true)) return absl::OkStatus();
  return Come(Begins(group));
}

absl::Status ShardedModel::Hooks::AfterForward(int group, Invocation& invocation) {
  --At(group).running;
  if (in_backward_) return absl::OkStatus();  // What was gathered to recompute serves backward as well.
  if (invocation.gradients()) {
    std::vector<int>& calls = calls_[&invocation];
    calls.resize(groups_.size());
    ++calls[static_cast<size_t>(group)];
  }
  WEFT_RETURN_IF_ERROR(Come(Ends(group)));
  return group == kRoot ? FinishForward(invocation) : absl::OkStatus();
}

absl::Status ShardedModel::Hooks::BeforeBackward(int group, Invocation& invocation) {
  if (group == kRoot) WEFT_RETURN_IF_ERROR(BeginBackward(invocation));
  ++At(group).running;
  if (!std::exchange(At(group).begun, true)) WEFT_RETURN_IF_ERROR(Come(Begins(group)));
  return Params(group).PrepareGradients();
}

absl::Status ShardedModel::Hooks::AfterBackward(int group, Invocation& invocation) {
  --At(group).running;
  --At(group).owed_backward;
  At(group).begun = false;
  WEFT_RETURN_IF_ERROR(Come(Ends(group)));
  return group == kRoot ? FinishBackward(invocation) : absl::OkStatus();
}

absl::Status ShardedModel::Hooks::BeginForward(const Invocation& invocation) {
  for (const auto& params : model_.groups_) WEFT_RETURN_IF_ERROR(params->EndWriting());
  model_.context_->BeginForward();
  pass_ = invocation.gradients() ? &training_ : &evaluation_;
  pass_->Begin();
  groups_.assign(groups_.size(), {});
  backward_follows_ = invocation.gradients();
  kept_ = false;
  calls_.erase(&invocation);  // Of an earlier invocation at this address, which was given up.
  // All at once: they wait for no memory, and the wire never waits for a module.
  for (const int next : pass_->Next(static_cast<int>(groups_.size()))) {
    WEFT_RETURN_IF_ERROR(Params(next).AllGatherUpdates(Priority::kBulk));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::Hooks::FinishForward(const Invocation& invocation) {
  WEFT_RETURN_IF_ERROR(SettleOrder());
  if (!backward_.settled()) backward_ = ExecutionOrder(Reversed(training_.expected()));
  if (invocation.gradients()) return absl::OkStatus();
  // No backward will take back what is still gathered, nor wait until no peer reads this rank's shards.
  WEFT_RETURN_IF_ERROR(SettleGathers(/*reshard=*/true));
  return model_.context_->FinishBackward();
}

absl::Status ShardedModel::Hooks::BeginBackward(const Invocation& invocation) {
  const auto calls = calls_.find(&invocation);
  if (calls == calls_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("backward of '", Params(kRoot).name(), "' without a forward of the same invocation"));
  }
  pass_ = &backward_;
  pass_->Begin();
  in_backward_ = true;
  groups_.assign(groups_.size(), {});
  for (size_t group = 0; group < groups_.size(); ++group) groups_[group].owed_backward = calls->second[group];
  return absl::OkStatus();
}

absl::Status ShardedModel::Hooks::FinishBackward(const Invocation& invocation) {
  calls_.erase(&invocation);
  in_backward_ = false;
  kept_ = !model_.reshard_after_backward_;
  WEFT_RETURN_IF_ERROR(SettleOrder());
  WEFT_RETURN_IF_ERROR(SettleGathers(/*reshard=*/!kept_));
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
    if (!At(group).reduced) WEFT_RETURN_IF_ERROR(ReduceUnvisited(group));
  }
  return model_.is_last_backward_ ? model_.context_->FinishBackward() : absl::OkStatus();
}

absl::Status ShardedModel::Hooks::Come(PassEvent event) {
  while (const std::optional<PassEvent> missed = pass_->TakeMissed(event)) WEFT_RETURN_IF_ERROR(Do(*missed));
  pass_->Visit(event);
  return Do(event);
}

absl::Status ShardedModel::Hooks::Do(PassEvent event) {
  const int group = event.group;
  if (event.kind == PassEvent::Kind::kEnd) return in_backward_ ? EndBackwardOf(group) : EndForwardOf(group);
  if (NeedsParameters(group)) WEFT_RETURN_IF_ERROR(Unshard(group, Priority::kCritical));
  WEFT_RETURN_IF_ERROR(Prefetch(group));
  return NeedsParameters(group) ? Wait(group) : absl::OkStatus();
}

absl::Status ShardedModel::Hooks::EndForwardOf(int group) {
  if (At(group).running > 0) return absl::OkStatus();
  if (!backward_follows_) return Reshard(group);
  return ReshardsAfterForward(group) ? Reshard(group, &ParamGroup::ReshardAfterForward) : absl::OkStatus();
}

bool ShardedModel::Hooks::ReshardsAfterForward(int group) const {
  if (group == kRoot) return model_.policy_.reshard_root_after_forward;
  return model_.policy_.reshard_after_forward && !StaysOverTheTurn(group);
}

bool ShardedModel::Hooks::StaysOverTheTurn(int group) const {
  return StaysUnshardedForBackward(*pass_, backward_, group, model_.policy_.PrefetchDepth()) &&
         !model_.sharded_in_backward_.contains(group);
}

// Gradients are whole, and parameters of no more use, when no call of this pass is left, here or elsewhere.
absl::Status ShardedModel::Hooks::EndBackwardOf(int group) {
  if (At(group).running > 0 || At(group).owed_backward > 0 || pass_->Expects(Ends(group))) {
    return absl::OkStatus();
  }
  WEFT_RETURN_IF_ERROR(Reduce(group));
  return model_.reshard_after_backward_ ? Reshard(group) : absl::OkStatus();
}

absl::Status ShardedModel::Hooks::SettleOrder() {
  if (pass_->settled()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const bool same, model_.scalars_->Same("order of groups", HashOf(pass_->visited())));
  pass_->Settle(same ? pass_->visited() : pass_->expected());
  return absl::OkStatus();
}

bool ShardedModel::Hooks::NeedsParameters(int group) const {
  return !in_backward_ || !model_.sharded_in_backward_.contains(group);
}

absl::Status ShardedModel::Hooks::Unshard(int group, Priority priority) {
  const ParamGroup::State state = Params(group).state();
  const bool gathers =
      state == ParamGroup::State::kSharded || state == ParamGroup::State::kShardedAfterForward;
  WEFT_RETURN_IF_ERROR(Params(group).Unshard(priority));
  if (gathers) Notify(ScheduleEvent::kUnshard, group);
  return absl::OkStatus();
}

absl::Status ShardedModel::Hooks::Wait(int group) {
  const bool waits = Params(group).state() == ParamGroup::State::kUnsharding;
  WEFT_RETURN_IF_ERROR(Params(group).WaitUnshard());
  if (waits) Notify(ScheduleEvent::kWait, group);
  return absl::OkStatus();
}

absl::Status ShardedModel::Hooks::Prefetch(int group) {
  const PrefetchLists& chosen = in_backward_ ? model_.backward_prefetch_ : model_.forward_prefetch_;
  for (const int next : Ahead(chosen, group, pass_->Next(model_.policy_.PrefetchDepth()))) {
    if (NeedsParameters(next)) WEFT_RETURN_IF_ERROR(Unshard(next, Priority::kPrefetch));
  }
  return backward_follows_ && !in_backward_ ? PrefetchOverTheTurn() : absl::OkStatus();
}

absl::Status ShardedModel::Hooks::PrefetchOverTheTurn() {
  if (model_.residency_.residency != Residency::kNodeShared) return absl::OkStatus();
  for (const int next : PrefetchAcrossBackwardStart(*pass_, backward_, model_.policy_.PrefetchDepth())) {
    if (model_.sharded_in_backward_.contains(next)) continue;
    WEFT_RETURN_IF_ERROR(Unshard(next, Priority::kPrefetch));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::Hooks::Reshard(int group, absl::Status (ParamGroup::*how)()) {
  const bool reshards = Params(group).state() == ParamGroup::State::kUnsharded;
  WEFT_RETURN_IF_ERROR((Params(group).*how)());
  if (reshards) Notify(ScheduleEvent::kReshard, group);
  return absl::OkStatus();
}

absl::Status ShardedModel::Hooks::Reduce(int group) {
  if (!model_.gradient_sync_) return absl::OkStatus();
  At(group).reduced = true;
  WEFT_RETURN_IF_ERROR(Params(group).PrepareGradients());
  WEFT_RETURN_IF_ERROR(Params(group).ReduceGradients(model_.all_reduce_ ? ReduceScope::kShardAndReplicate
                                                                        : ReduceScope::kShard));
  Notify(ScheduleEvent::kReduce, group);
  return absl::OkStatus();
}

// A group that is in nobody's order: its gradient is what earlier microbatches left, or zero, and then ranks
// that know the order need not talk about it.
absl::Status ShardedModel::Hooks::ReduceUnvisited(int group) {
  const bool is_visited = absl::c_linear_search(pass_->expected(), Ends(group));
  if (is_visited || !pass_->settled() || Params(group).has_gradients()) return Reduce(group);
  return model_.gradient_sync_ ? Params(group).CountGradientsAsZero() : absl::OkStatus();
}

absl::Status ShardedModel::Hooks::SettleGathers(bool reshard) {
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
    if (Params(group).state() == ParamGroup::State::kUnsharding) WEFT_RETURN_IF_ERROR(Wait(group));
    if (reshard) WEFT_RETURN_IF_ERROR(Reshard(group));
  }
  return absl::OkStatus();
}

void ShardedModel::Hooks::Notify(ScheduleEvent event, int group) {
  if (model_.observer_) model_.observer_(event, Params(group));
}

}  // namespace weft
