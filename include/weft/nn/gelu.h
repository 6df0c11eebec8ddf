// y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the Gaussian error linear unit (Hendrycks and Gimpel,
// 2016) in its approximation by tanh. Computed in fp32.
//
// Inputs: x, any shape. Outputs: y, the same.
#pragma once

#include "weft/nn/module.h"

namespace weft {

class Gelu : public Module {
 public:
  using Module::Module;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

}  // namespace weft
