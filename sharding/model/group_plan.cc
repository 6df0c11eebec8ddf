#include "sharding/model/group_plan.h"

#include <string>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_join.h>

#include "weft/core/status.h"

namespace weft {
namespace {

struct PlannedBlock {
  std::string name;
  int modules_left;        // Modules that the walk has not reached.
  int group = -1;          // Number of its group; -1 before its first module.
  bool is_inside = false;  // True if the walk is inside one of its modules.
};
using BlockOf = absl::flat_hash_map<const Module*, size_t>;

class Planner {
 public:
  Planner(std::vector<PlannedBlock> blocks, BlockOf block_of, const ParameterFilter& ignored)
      : blocks_(std::move(blocks)), block_of_(std::move(block_of)), ignored_(ignored) {}

  absl::Status Visit(Module& module, int group) {
    PlannedBlock* block = Reach(module);
    if (block != nullptr) {
      WEFT_RETURN_IF_ERROR(Enter(module, *block));
      group = block->group;
    }
    for (const std::shared_ptr<Parameter>& parameter : module.parameters()) {
      if (ignored_ && ignored_(*parameter)) continue;
      WEFT_RETURN_IF_ERROR(Claim(parameter, static_cast<size_t>(group)));
    }
    for (Module* child : module.children()) WEFT_RETURN_IF_ERROR(Visit(*child, group));
    return block != nullptr ? Leave(*block) : absl::OkStatus();
  }

  const BlockOf& modules_left() const { return block_of_; }
  std::vector<ModuleGroup> TakeGroups() { return std::move(groups_); }

 private:
  // The block that `module` begins or continues. Null: it is no module of a block, or lies inside another one
  // of the same block.
  PlannedBlock* Reach(const Module& module) {
    const auto found = block_of_.find(&module);
    if (found == block_of_.end()) return nullptr;
    PlannedBlock& block = blocks_[found->second];
    block_of_.erase(found);
    --block.modules_left;
    return block.is_inside ? nullptr : &block;
  }

  absl::Status Enter(Module& module, PlannedBlock& block) {
    if (block.group < 0) {
      block.group = static_cast<int>(groups_.size());
      groups_.push_back({{}, {block.name, under_way_.empty() ? -1 : under_way_.back(), {}}});
      under_way_.push_back(block.group);
    } else if (under_way_.back() != block.group) {
      return Overlap(block);
    }
    groups_[static_cast<size_t>(block.group)].modules.push_back(&module);
    block.is_inside = true;
    return absl::OkStatus();
  }

  absl::Status Leave(PlannedBlock& block) {
    block.is_inside = false;
    if (block.modules_left > 0) return absl::OkStatus();
    if (under_way_.back() != block.group) return Overlap(block);
    under_way_.pop_back();
    return absl::OkStatus();
  }

  absl::Status Overlap(const PlannedBlock& block) const {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter groups '", groups_[static_cast<size_t>(under_way_.back())].members.name,
                     "' and '", block.name,
                     "' overlap: one of them begins inside the other and ends outside; list modules between "
                     "whose first and last no other group begins or ends alone"));
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

  std::vector<PlannedBlock> blocks_;
  BlockOf block_of_;  // The modules that the walk has not reached.
  const ParameterFilter& ignored_;
  std::vector<int> under_way_;  // Groups between their first and their last module, innermost last.
  absl::flat_hash_map<const Parameter*, size_t> owners_;
  absl::flat_hash_set<std::string> names_;
  std::vector<ModuleGroup> groups_;
};

std::string NameOf(const ModuleBlock& block) {
  return absl::StrJoin(block.modules(), "+",
                       [](std::string* out, const Module* module) { out->append(module->name()); });
}

}  // namespace

absl::StatusOr<std::vector<ModuleGroup>> PlanGroups(Module& root, const ModuleBlocks& blocks,
                                                    const ParameterFilter& ignored) {
  std::vector<PlannedBlock> planned = {{root.name().empty() ? "root" : root.name(), 1}};
  BlockOf block_of = {{&root, 0}};
  for (const ModuleBlock& block : blocks.blocks()) {
    if (block.modules().empty()) {
      return absl::InvalidArgumentError("a block without modules: list at least one module for each group");
    }
    for (const Module* module : block.modules()) {
      if (!block_of.try_emplace(module, planned.size()).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "module '", module->name(), "' is ", module == &root ? "the root, which is" : "listed twice as",
            " a group by itself: list each module once"));
      }
    }
    planned.push_back({NameOf(block), static_cast<int>(block.modules().size())});
  }
  Planner planner(std::move(planned), std::move(block_of), ignored);
  WEFT_RETURN_IF_ERROR(planner.Visit(root, -1));
  if (!planner.modules_left().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("block '", planner.modules_left().begin()->first->name(),
                                                   "' is not below the root '", root.name(), "'"));
  }
  std::vector<ModuleGroup> groups = planner.TakeGroups();
  for (ModuleGroup& group : groups) group.members.modules = static_cast<int>(group.modules.size());
  return groups;
}

}  // namespace weft
