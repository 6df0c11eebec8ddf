// Assignment of a model's parameters to groups: every block takes the parameters below it, except those of
// blocks inside it; the root takes the rest.
//
// Pure.
#pragma once

#include <functional>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "sharding/plan/group_spec.h"
#include "weft/nn/module.h"

namespace weft {

// A module and the group of its parameters. The group is named like the module, or "root" if the module has
// no name.
struct ModuleGroup {
  Module* module;
  GroupMembers members;
};

using ParameterFilter = std::function<bool(const Parameter&)>;

// The root's group first, then the blocks' in the order of modules. Parameters that `ignored` selects are in
// no group. Errors: kInvalidArgument (a block listed twice, or not below the root; a parameter that modules
// of two groups share).
absl::StatusOr<std::vector<ModuleGroup>> PlanGroups(Module& root, absl::Span<Module* const> blocks,
                                                    const ParameterFilter& ignored = nullptr);

}  // namespace weft
