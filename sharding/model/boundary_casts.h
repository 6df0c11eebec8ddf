// Casts of tensors at the boundaries of group modules: inputs to the group's compute dtype, the root's
// outputs to the dtype that the caller wants, and their gradients back. Integer tensors pass unchanged.
//
// The original dtypes are saved in the invocation, like the modules' own saves.
//
// Thread safety: none.
// Lifetime: the modules must outlive the casts.
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
