// Modules of which FullyShard makes parameter groups: one group for each module, or for each list of modules.
//
//   FullyShard(net, net.children(), ...)                    // A group for each child.
//   FullyShard(net, {&first, {&norm, &head}, &last}, ...)   // Three groups; norm and head share one.
//
// Thread safety: a value. Lifetime: it owns no module.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include <absl/types/span.h>

#include "weft/nn/module.h"

namespace weft {

// The modules of one group, like the argument of PyTorch's fully_shard. The group is gathered before the
// first of them runs, and resharded after the last; its gradients are reduced once. A module inside another
// one of the list adds nothing.
class ModuleBlock {
 public:
  ModuleBlock(Module* module) : modules_{module} {}
  ModuleBlock(std::initializer_list<Module*> modules) : modules_(modules) {}
  ModuleBlock(std::vector<Module*> modules) : modules_(std::move(modules)) {}

  const std::vector<Module*>& modules() const { return modules_; }

 private:
  std::vector<Module*> modules_;
};

class ModuleBlocks {
 public:
  ModuleBlocks() = default;
  ModuleBlocks(std::initializer_list<ModuleBlock> blocks) : blocks_(blocks) {}
  ModuleBlocks(std::vector<ModuleBlock> blocks) : blocks_(std::move(blocks)) {}
  // One group for each module.
  ModuleBlocks(const std::vector<Module*>& modules) : blocks_(modules.begin(), modules.end()) {}
  ModuleBlocks(absl::Span<Module* const> modules) : blocks_(modules.begin(), modules.end()) {}

  const std::vector<ModuleBlock>& blocks() const { return blocks_; }

 private:
  std::vector<ModuleBlock> blocks_;
};

}  // namespace weft
