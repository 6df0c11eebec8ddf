// Which parameters form which group: every block takes what lies below it, but for what blocks inside it
// take; the root takes the rest.
//
// Pure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/nn/module.h"

namespace weft {

struct PlannedGroup {
  Module* module;
  int parent;  // Place of the group around it, -1 of the root.
  std::vector<std::shared_ptr<Parameter>> parameters;

  // The module's name, or "root" for a root without one.
  std::string name() const { return module->name().empty() ? "root" : module->name(); }
};

using ParameterFilter = std::function<bool(const Parameter&)>;

// The parameters `ignored` picks are in no group. The root first, then the blocks in order of modules.
// Errors: kInvalidArgument (a block listed twice, or not below the root; a parameter that modules of two
// groups share).
absl::StatusOr<std::vector<PlannedGroup>> PlanGroups(Module& root, absl::Span<Module* const> blocks,
                                                     const ParameterFilter& ignored = nullptr);

}  // namespace weft
