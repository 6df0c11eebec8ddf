// Gated activation of Llama's feed-forward layer: y = silu(gate) * up, silu(x) = x / (1 + e^-x) (Shazeer,
// "GLU Variants Improve Transformer", 2020, section 2). Computed in fp32.
//
// Inputs: gate and up [..., features], f32 or bf16. Outputs: y of the same shape and dtype.
// Saves: gate and up. Backward overwrites them with their gradients.
#pragma once

#include <string>

#include "weft/nn/module.h"

namespace weft {

class SwiGlu : public Module {
 public:
  using Module::Module;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

}  // namespace weft
