#include "sharding/model/module_hooks.h"

#include "weft/core/status.h"

namespace weft {
namespace {

SchedulePass PassOf(const Invocation& invocation) {
  return {reinterpret_cast<uintptr_t>(&invocation), invocation.gradients()};
}

}  // namespace

ModuleHooks::ModuleHooks(ShardedGroups& groups, absl::Span<Module* const> modules) : groups_(groups) {
  for (int group = 0; group < static_cast<int>(modules.size()); ++group) {
    Register(group, *modules[static_cast<size_t>(group)]);
  }
  // Peers must also learn of failures between the hooks, such as those of a layer.
  Module& root = *modules[kRootGroup];
  registered_.emplace_back(&root, root.AddErrorHook([this](Module&, const absl::Status& error) {
    groups_.context().state().Stop(error);
  }));
}

ModuleHooks::~ModuleHooks() {
  for (const auto& [module, id] : registered_) module->RemoveHook(id);
}

void ModuleHooks::Register(int group, Module& module) {
  GroupSchedule& schedule = groups_.schedule();
  registered_.emplace_back(
      &module,
      module.AddForwardPreHook(Guarded("before forward", group, [&schedule, group](const SchedulePass& pass) {
        return schedule.BeforeForward(group, pass);
      })));
  registered_.emplace_back(&module, module.AddForwardPostHook(Guarded(
                                        "after forward", group, [&schedule, group](const SchedulePass& pass) {
                                          return schedule.AfterForward(group, pass);
                                        })));
  registered_.emplace_back(
      &module, module.AddBackwardPreHook(
                   Guarded("before backward", group, [&schedule, group](const SchedulePass& pass) {
                     return schedule.BeforeBackward(group, pass);
                   })));
  registered_.emplace_back(
      &module, module.AddBackwardPostHook(Guarded(
                   "after backward", group, [&schedule, group](const SchedulePass& pass) -> absl::Status {
                     WEFT_RETURN_IF_ERROR(schedule.AfterBackward(group));
                     return group == kRootGroup ? schedule.FinishBackward(pass) : absl::OkStatus();
                   })));
}

template <typename Call>
Module::Hook ModuleHooks::Guarded(const char* place, int group, Call call) {
  return [this, place, group, call](Module&, Invocation& invocation, Tensors&) -> absl::Status {
    const absl::Status status = call(PassOf(invocation));
    if (status.ok()) return status;
    return Annotate(groups_.context().state().Fail(status),
                    absl::StrCat(place, " of '", groups_.group(group).name(), "'"));
  };
}

}  // namespace weft
