// Swap of the last two dims, as a module. A layer between two Transposes works on the second-last dim.
//
// Inputs: x [..., a, b], f32, bf16 or f16. Outputs: y [..., b, a], contiguous, a copy in the dtype of x.
// Saves: nothing. The gradient may have any strides.
#pragma once

#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

class Transpose : public Module {
 public:
  using Module::Module;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

}  // namespace weft
