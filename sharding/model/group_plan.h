// Assignment of a model's parameters to groups: every block takes the parameters below its modules, except
// those of blocks inside it; the root takes the rest.
//
// Pure.
#pragma once

#include <functional>
#include <vector>

#include <absl/status/statusor.h>

#include "sharding/plan/group_spec.h"
#include "weft/nn/module.h"
#include "weft/sharding/module_blocks.h"

namespace weft {

// The modules of a group, in the order of the model, and its parameters. A group is named like its module, or
// like its modules with a '+' between them. A root without a name is "root".
//
// The parent of a group is the innermost one under way where it begins, if modules run in the order of the
// model. A group of several modules is under way from the first of them to the last.
struct ModuleGroup {
  std::vector<Module*> modules;
  GroupMembers members;
};

using ParameterFilter = std::function<bool(const Parameter&)>;

// The root's group first, then the blocks' in the order of modules. Parameters that `ignored` selects are in
// no group. Errors: kInvalidArgument (a module listed twice, or not below the root; a block without modules;
// a parameter that modules of two groups share; two groups of which each begins or ends inside the other).
absl::StatusOr<std::vector<ModuleGroup>> PlanGroups(Module& root, const ModuleBlocks& blocks,
                                                    const ParameterFilter& ignored = nullptr);

}  // namespace weft
