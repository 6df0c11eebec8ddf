#include "sharding/model/module_hooks.h"

#include "sharding/plan/execution_order.h"
#include "weft/core/status.h"

namespace weft {
namespace {

SchedulePass PassOf(const Invocation& invocation) {
  return {reinterpret_cast<uintptr_t>(&invocation), invocation.gradients()};
}

}  // namespace

ModuleHooks::ModuleHooks(ShardedGroups& groups, absl::Span<const std::vector<Module*>> modules)
    : groups_(groups) {
  for (int group = 0; group < static_cast<int>(modules.size()); ++group) {
    for (Module* module : modules[static_cast<size_t>(group)]) Register(group, *module);
  }
  // Peers must also learn of failures between the hooks, such as those of a layer.
  Module& root = *modules[kRootGroup].front();
  registered_.emplace_back(
      &root, root.AddErrorHook([this](Module&, const absl::Status& error) { groups_.Stop(error); }));
}

ModuleHooks::~ModuleHooks() {
  for (const auto& [module, id] : registered_) module->RemoveHook(id);
}

void ModuleHooks::Register(int group, Module& module) {
  const auto add = [&](Module::HookId id) { registered_.emplace_back(&module, id); };
  add(module.AddForwardPreHook([this, group](Module&, Invocation& invocation, Tensors&) {
    return groups_.BeforeForward(group, PassOf(invocation));
  }));
  add(module.AddForwardPostHook([this, group](Module&, Invocation& invocation, Tensors&) {
    return groups_.AfterForward(group, PassOf(invocation));
  }));
  add(module.AddBackwardPreHook([this, group](Module&, Invocation& invocation, Tensors&) {
    return groups_.BeforeBackward(group, PassOf(invocation));
  }));
  add(module.AddBackwardPostHook([this, group](Module&, Invocation& invocation, Tensors&) -> absl::Status {
    WEFT_RETURN_IF_ERROR(groups_.AfterBackward(group));
    return group == kRootGroup ? FinishBackward(invocation) : absl::OkStatus();
  }));
}

// An invocation has one backward.
absl::Status ModuleHooks::FinishBackward(const Invocation& invocation) {
  groups_.Abandon(PassOf(invocation).id);
  return groups_.FinishBackward();
}

}  // namespace weft
