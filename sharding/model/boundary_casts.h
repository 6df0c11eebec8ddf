// Casts where tensors enter and leave the modules of groups: inputs to what the group computes with, the
// root's outputs to what the caller wants, and gradients back the same ways. Integers pass as they are.
//
// What was cast from is kept in the invocation, as the modules' own saves are.
//
// Thread safety: none. Lifetime: the modules must outlive the casts.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "weft/core/dtype.h"
#include "weft/nn/module.h"

namespace weft {

class BoundaryCasts {
 public:
  BoundaryCasts() = default;
  ~BoundaryCasts();
  BoundaryCasts(const BoundaryCasts&) = delete;
  BoundaryCasts& operator=(const BoundaryCasts&) = delete;

  void CastInputs(Module& module, DType dtype);
  void CastOutputs(Module& module, DType dtype);

 private:
  std::vector<std::pair<Module*, Module::HookId>> registered_;
};

}  // namespace weft
