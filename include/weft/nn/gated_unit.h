// Gated activation of a decoder's feed-forward layer: y = f(gate) * up (Shazeer, "GLU Variants Improve
// Transformer", 2020, section 2). Computed in fp32.
//   kSilu      f(x) = x / (1 + e^-x): SwiGLU, as in Llama
//   kGeluTanh  f(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GeGLU with the tanh approximation of the
//              Gaussian error linear unit, as in Gemma
//
// Inputs: gate and up [..., features], f32, bf16 or f16. Outputs: y of the same shape and dtype.
// Saves: gate and up. Backward overwrites them with their gradients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

enum class GateActivation : uint8_t { kSilu, kGeluTanh };

// "silu" or "gelu_pytorch_tanh", as in transformers.
std::string_view Name(GateActivation activation);

class GatedUnit : public Module {
 public:
  explicit GatedUnit(std::string name, GateActivation activation = GateActivation::kSilu)
      : Module(std::move(name)), activation_(activation) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  GateActivation activation_;
};

}  // namespace weft
