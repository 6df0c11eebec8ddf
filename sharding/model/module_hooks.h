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

#include "weft/nn/module.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {

class ModuleHooks {
 public:
  // `modules[i]`: the modules of group i; the root first.
  ModuleHooks(ShardedGroups& groups, absl::Span<const std::vector<Module*>> modules);
  ~ModuleHooks();
  ModuleHooks(const ModuleHooks&) = delete;
  ModuleHooks& operator=(const ModuleHooks&) = delete;

 private:
  void Register(int group, Module& module);
  absl::Status FinishBackward(const Invocation& invocation);

  ShardedGroups& groups_;
  std::vector<std::pair<Module*, Module::HookId>> registered_;
};

}  // namespace weft
