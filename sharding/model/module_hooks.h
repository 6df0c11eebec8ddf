// Hooks on modules that drive the schedule of their parameter groups.
//
// A module's forward and backward hooks call the schedule with the number of its group. A failure of the
// schedule, or of anything between the hooks, fails the model on all ranks.
//
// Thread safety: none. Lifetime: groups and modules must outlive the hooks.
#pragma once

#include <utility>
#include <vector>

#include <absl/types/span.h>

#include "sharding/model/sharded_groups.h"
#include "weft/nn/module.h"

namespace weft {

class ModuleHooks {
 public:
  // `modules[i]`: the module of group i; the root first.
  ModuleHooks(ShardedGroups& groups, absl::Span<Module* const> modules);
  ~ModuleHooks();
  ModuleHooks(const ModuleHooks&) = delete;
  ModuleHooks& operator=(const ModuleHooks&) = delete;

 private:
  template <typename Call>
  Module::Hook Guarded(const char* place, int group, Call call);
  void Register(int group, Module& module);

  ShardedGroups& groups_;
  std::vector<std::pair<Module*, Module::HookId>> registered_;
};

}  // namespace weft
