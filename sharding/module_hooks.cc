#include "sharding/module_hooks.h"

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kRoot = 0;

size_t Index(int group) { return static_cast<size_t>(group); }

}  // namespace

ShardedModel::Hooks::Hooks(ShardedModel& model, const std::vector<Module*>& modules) : model_(model) {
  for (int group = 0; group < static_cast<int>(modules.size()); ++group) {
    Module* module = modules[Index(group)];
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
}

Module::Hook ShardedModel::Hooks::Guarded(Step step, int group) {
  return [this, step, group](Module&, Invocation& invocation, Tensors&) {
    const absl::Status status = (this->*step)(group, invocation);
    return status.ok() ? status : model_.context_->Fail(status);
  };
}

absl::Status ShardedModel::Hooks::BeforeForward(int group, Invocation& invocation) {
  if (group == kRoot) {
    forward_.Begin(last_forward_);
    finished_.clear();
    open_calls_.erase(&invocation);  // Of an earlier invocation at this address, which was given up.
  }
  WEFT_RETURN_IF_ERROR(Gather(group));
  return Prefetch(forward_.Visit(group, model_.policy_.prefetch_depth));
}

absl::Status ShardedModel::Hooks::AfterForward(int group, Invocation& invocation) {
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
  if (invocation.gradients()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(ReshardAll());
  return model_.context_->FinishBackward();
}

absl::Status ShardedModel::Hooks::BeforeBackward(int group, Invocation&) {
  if (group == kRoot) backward_.Begin({last_finished_.rbegin(), last_finished_.rend()});
  WEFT_RETURN_IF_ERROR(Gather(group));
  WEFT_RETURN_IF_ERROR(model_.groups_[Index(group)]->PrepareGradients());
  return Prefetch(backward_.Visit(group, model_.policy_.prefetch_depth));
}

absl::Status ShardedModel::Hooks::AfterBackward(int group, Invocation& invocation) {
  const auto calls = open_calls_.find(&invocation);
  if (calls == open_calls_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("backward of '", model_.groups_[Index(group)]->name(),
                                                      "' without a forward of the same invocation"));
  }
  if (--calls->second[Index(group)] > 0) return absl::OkStatus();
  ParamGroup& params = *model_.groups_[Index(group)];
  if (model_.gradient_sync_) WEFT_RETURN_IF_ERROR(params.ReduceGradients());
  WEFT_RETURN_IF_ERROR(params.Reshard());
  if (group != kRoot) return absl::OkStatus();
  open_calls_.erase(calls);
  WEFT_RETURN_IF_ERROR(ReshardAll());
  WEFT_RETURN_IF_ERROR(model_.context_->FinishBackward());
  return model_.gradient_sync_ ? ReduceUnused() : absl::OkStatus();
}

absl::Status ShardedModel::Hooks::Gather(int group) {
  ParamGroup& params = *model_.groups_[Index(group)];
  WEFT_RETURN_IF_ERROR(params.Unshard(Priority::kCritical));
  return params.WaitUnshard();
}

absl::Status ShardedModel::Hooks::Prefetch(absl::Span<const int> groups) {
  for (const int group : groups) {
    WEFT_RETURN_IF_ERROR(model_.groups_[Index(group)]->Unshard(Priority::kPrefetch));
  }
  return absl::OkStatus();
}

// Without a backward to come nothing would take the image away before the shards change.
bool ShardedModel::Hooks::KeepsAfterForward(int group, const Invocation& invocation) const {
  if (!invocation.gradients()) return false;
  return group == kRoot ? !model_.policy_.reshard_root_after_forward : !model_.policy_.reshard_after_forward;
}

// Also takes back what was gathered ahead for modules that were not called after all.
absl::Status ShardedModel::Hooks::ReshardAll() {
  for (const auto& group : model_.groups_) {
    if (group->state() == ParamGroup::State::kUnsharding) WEFT_RETURN_IF_ERROR(group->WaitUnshard());
    WEFT_RETURN_IF_ERROR(group->Reshard());
  }
  return absl::OkStatus();
}

// Groups whose module took no part in this backward: their gradient is zero, or what earlier microbatches
// left.
absl::Status ShardedModel::Hooks::ReduceUnused() {
  for (const auto& group : model_.groups_) {
    if (group->has_reduced_gradients()) continue;
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    WEFT_RETURN_IF_ERROR(group->ReduceGradients());
  }
  return model_.context_->FinishBackward();
}

}  // namespace weft
