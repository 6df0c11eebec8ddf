// y = silu(gate) * up, silu(x) = x / (1 + e^-x): the gated activation of Llama's feed-forward layer (Shazeer,
// 2020).
//
// Inputs: gate, up [..., features], the same shape. Outputs: y, the same. Backward works in place: the
// gradients of gate and up take the memory of the inputs.
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
