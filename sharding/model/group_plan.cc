#include "sharding/model/group_plan.h"

#include <string>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include "weft/core/status.h"

namespace weft {
namespace {

class Planner {
 public:
  Planner(absl::flat_hash_set<const Module*> blocks, const ParameterFilter& ignored)
      : blocks_(std::move(blocks)), ignored_(ignored) {}

  absl::Status Visit(Module& module, int group) {
    if (blocks_.erase(&module) > 0) {
      groups_.push_back({&module, {module.name().empty() ? "root" : module.name(), group, {}}});
      group = static_cast<int>(groups_.size()) - 1;
    }
    for (const std::shared_ptr<Parameter>& parameter : module.parameters()) {
      if (ignored_ && ignored_(*parameter)) continue;
      WEFT_RETURN_IF_ERROR(Claim(parameter, static_cast<size_t>(group)));
    }
    for (Module* child : module.children()) WEFT_RETURN_IF_ERROR(Visit(*child, group));
    return absl::OkStatus();
  }

  absl::Status Claim(const std::shared_ptr<Parameter>& parameter, size_t group) {
    const auto [owner, first] = owners_.try_emplace(parameter.get(), group);
    if (first) {
      if (!names_.insert(parameter->name).second) {
        return absl::InvalidArgumentError(absl::StrCat("two parameters are named '", parameter->name,
                                                       "': initial values, files and optimizer states go by "
                                                       "name, so give their modules different names"));
      }
      groups_[group].members.parameters.push_back(parameter);
      return absl::OkStatus();
    }
    if (owner->second == group) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("parameter '", parameter->name, "' belongs to two groups, '",
                     groups_[owner->second].members.name, "' and '", groups_[group].members.name,
                     "': modules that share a parameter must be in one group, for instance the root's"));
  }

  const absl::flat_hash_set<const Module*>& blocks_left() const { return blocks_; }
  std::vector<ModuleGroup> TakeGroups() { return std::move(groups_); }

 private:
  absl::flat_hash_set<const Module*> blocks_;
  const ParameterFilter& ignored_;
  absl::flat_hash_map<const Parameter*, size_t> owners_;
  absl::flat_hash_set<std::string> names_;
  std::vector<ModuleGroup> groups_;
};

}  // namespace

absl::StatusOr<std::vector<ModuleGroup>> PlanGroups(Module& root, absl::Span<Module* const> blocks,
                                                    const ParameterFilter& ignored) {
  absl::flat_hash_set<const Module*> wanted = {&root};
  for (const Module* block : blocks) {
    if (!wanted.insert(block).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "module '", block->name(), "' is ", block == &root ? "the root, which is" : "listed twice as",
          " a group by itself: list each block once"));
    }
  }
  Planner planner(std::move(wanted), ignored);
  WEFT_RETURN_IF_ERROR(planner.Visit(root, -1));
  if (!planner.blocks_left().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("block '", (*planner.blocks_left().begin())->name(),
                                                   "' is not below the root '", root.name(), "'"));
  }
  return planner.TakeGroups();
}

}  // namespace weft
