// Gaussian error linear unit in its tanh approximation: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
// (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, section 2). Computed in fp32.
//
// Inputs: x of any shape, f32, bf16 or f16. Outputs: y of the same shape and dtype. Saves: x.
#pragma once

#include <absl/status/statusor.h>

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
