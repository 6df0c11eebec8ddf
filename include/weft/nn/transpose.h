// Swaps the last two dims, so that a layer which works on the last dim works on the other.
//
// Inputs: x [..., a, b]. Outputs: y [..., b, a], contiguous.
#pragma once

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
