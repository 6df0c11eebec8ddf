#include "sharding/module_hooks.h"

#include <utility>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kRoot = 0;

size_t Index(int group) { return static_cast<size_t>(group); }

}  // namespace

ShardedModel::Hooks::Hooks(ShardedModel& model) : model_(model) {
  for (int group = 0; group < static_cast<int>(model.modules_.size()); ++group) {
    Module* module = model.modules_[Index(group)];
    registered_.emplace_back(module, module->AddForwardPreHook(Guarded(&Hooks::BeforeForward, group)));
    registered_.emplace_back(module, module->AddForwardPostHook(Guarded(&Hooks::AfterForward, group)));
    registered_.emplace_back(module, module->AddBackwardPreHook(Guarded(&Hooks::BeforeBackward, group)));
    registered_.emplace_back(module, module->AddBackwardPostHook(Guarded(&Hooks::AfterBackward, group)));
  }
}

ShardedModel::Hooks::~Hooks() {
  for (const auto& [module, id] : registered_) module->RemoveHook(id);
}

void ShardedModel::Hooks::ResetAfterError() {
  open_calls_.clear();
  last_forward_.clear();
  last_finished_.clear();
  in_backward_ = false;
  kept_ = false;
}

void ShardedModel::Hooks::ForgetKept() {
  if (!std::exchange(kept_, false)) return;
  for (const auto& group : model_.groups_) {
    if (group->state() != ParamGroup::State::kUnsharded) continue;
    WEFT_CHECK(group->Reshard().ok(), "an unsharded group cannot be resharded");
  }
}

Module::Hook ShardedModel::Hooks::Guarded(Step step, int group) {
  return [this, step, group](Module&, Invocation& invocation, Tensors&) {
    const absl::Status status = (this->*step)(group, invocation);
    return status.ok() ? status : model_.context_->Fail(status);
  };
}

absl::Status ShardedModel::Hooks::BeforeForward(int group, Invocation& invocation) {
  if (in_backward_) return Gather(group);  // A recompute: backward has said what comes next.
  if (group == kRoot) {
    forward_.Begin(last_forward_);
    finished_.clear();
    kept_ = false;
    open_calls_.erase(&invocation);  // Of an earlier invocation at this address, which was given up.
  }
  WEFT_RETURN_IF_ERROR(Gather(group));
  return Prefetch(group, model_.forward_prefetch_, forward_.Visit(group, model_.policy_.prefetch_depth));
}

absl::Status ShardedModel::Hooks::AfterForward(int group, Invocation& invocation) {
  if (in_backward_) return absl::OkStatus();  // What was gathered to recompute serves backward as well.
  finished_.push_back(group);
  if (invocation.gradients()) {
    std::vector<int>& calls = open_calls_[&invocation];
    calls.resize(model_.groups_.size());
    ++calls[Index(group)];
  }
  if (!KeepsAfterForward(group, invocation)) WEFT_RETURN_IF_ERROR(model_.groups_[Index(group)]->Reshard());
  if (group != kRoot) return absl::OkStatus();
  last_forward_ = forward_.visited();
  last_finished_ = finished_;
  return invocation.gradients() ? absl::OkStatus() : FinishForward();
}

absl::Status ShardedModel::Hooks::BeforeBackward(int group, Invocation&) {
  if (group == kRoot) {
    backward_.Begin({last_finished_.rbegin(), last_finished_.rend()});
    in_backward_ = true;
    reduced_.assign(model_.groups_.size(), false);
  }
  WEFT_RETURN_IF_ERROR(Gather(group));
  WEFT_RETURN_IF_ERROR(model_.groups_[Index(group)]->PrepareGradients());
  return Prefetch(group, model_.backward_prefetch_, backward_.Visit(group, model_.policy_.prefetch_depth));
}

absl::Status ShardedModel::Hooks::AfterBackward(int group, Invocation& invocation) {
  const auto calls = open_calls_.find(&invocation);
  if (calls == open_calls_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("backward of '", model_.groups_[Index(group)]->name(),
                                                      "' without a forward of the same invocation"));
  }
  if (--calls->second[Index(group)] > 0) return absl::OkStatus();
  if (model_.gradient_sync_) WEFT_RETURN_IF_ERROR(ReduceOnce(group));
  if (model_.reshard_after_backward_) WEFT_RETURN_IF_ERROR(model_.groups_[Index(group)]->Reshard());
  if (group != kRoot) return absl::OkStatus();
  open_calls_.erase(calls);
  return FinishBackward();
}

absl::Status ShardedModel::Hooks::Gather(int group) {
  ParamGroup& params = *model_.groups_[Index(group)];
  WEFT_RETURN_IF_ERROR(params.Unshard(Priority::kCritical));
  return params.WaitUnshard();
}

absl::Status ShardedModel::Hooks::Prefetch(int group, const PrefetchLists& lists,
                                           absl::Span<const int> expected) {
  const auto chosen = lists.find(group);
  for (const int next : chosen != lists.end() ? absl::MakeConstSpan(chosen->second) : expected) {
    WEFT_RETURN_IF_ERROR(model_.groups_[Index(next)]->Unshard(Priority::kPrefetch));
  }
  return absl::OkStatus();
}

// Without a backward to come nothing would take the image away before the shards change.
bool ShardedModel::Hooks::KeepsAfterForward(int group, const Invocation& invocation) const {
  if (!invocation.gradients()) return false;
  return group == kRoot ? !model_.policy_.reshard_root_after_forward : !model_.policy_.reshard_after_forward;
}

absl::Status ShardedModel::Hooks::ReduceOnce(int group) {
  reduced_[Index(group)] = true;
  ParamGroup& params = *model_.groups_[Index(group)];
  WEFT_RETURN_IF_ERROR(params.PrepareGradients());
  return params.ReduceGradients(model_.all_reduce_ ? ReduceScope::kShardAndReplicate : ReduceScope::kShard);
}

absl::Status ShardedModel::Hooks::SettleAll(bool reshard) {
  for (const auto& group : model_.groups_) {
    if (group->state() == ParamGroup::State::kUnsharding) WEFT_RETURN_IF_ERROR(group->WaitUnshard());
    if (reshard) WEFT_RETURN_IF_ERROR(group->Reshard());
  }
  return absl::OkStatus();
}

// No backward will take back what is still gathered, nor wait until no peer reads this rank's shards.
absl::Status ShardedModel::Hooks::FinishForward() {
  WEFT_RETURN_IF_ERROR(SettleAll(/*reshard=*/true));
  return model_.context_->FinishBackward();
}

absl::Status ShardedModel::Hooks::FinishBackward() {
  in_backward_ = false;
  kept_ = !model_.reshard_after_backward_;
  WEFT_RETURN_IF_ERROR(SettleAll(/*reshard=*/!kept_));
  if (model_.gradient_sync_) {
    // Groups whose module took no part: their gradient is zero, or what earlier microbatches left.
    for (int group = 0; group < static_cast<int>(model_.groups_.size()); ++group) {
      if (!reduced_[Index(group)]) WEFT_RETURN_IF_ERROR(ReduceOnce(group));
    }
  }
  return model_.is_last_backward_ ? model_.context_->FinishBackward() : absl::OkStatus();
}

}  // namespace weft
