// Loss scale of training in f16, fixed or dynamic: that of torch.amp.GradScaler.
//
// Note [Loss scale]
// Problem: gradients of less than 6e-8, the smallest number of f16, become 0.
// Rule: backward starts with the loss scale as the gradient of the loss, so all gradients have it as a
//   factor, and the norm and the update divide by it. If a gradient overflows, the step is skipped, and a
//   dynamic scale is halved. After `growth_interval` steps in a row without an overflow it is doubled.
// Why it suffices: the norm of all ranks decides about the overflow, so all skip and scale alike. A power of
//   two changes no bit of a gradient that neither underflows nor overflows.
// Without it: training in f16 stalls, as most gradients are 0.
//
//   LossScaler scaler(LossScalerOptions{});
//   for (each step) {
//     *gradient.As<float>() = scaler.scale();
//     net.Forward(invocation, ...); net.Backward(invocation, {gradient});
//     WEFT_ASSIGN_OR_RETURN(GradientNorm norm, model->ClipGradNorm(kNoClipping));
//     norm = scaler.Unscaled(norm, /*max_norm=*/1.0);
//     if (std::isfinite(norm.norm)) WEFT_RETURN_IF_ERROR(adamw.Step(*model, norm.factor));
//     scaler.Update(!std::isfinite(norm.norm));
//     model->ZeroGradients();
//   }
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>

#include <absl/status/status.h>

#include "weft/sharding/gradient_norm.h"

namespace weft {

// The defaults are those of torch.amp.GradScaler.
struct LossScalerOptions {
  // A loss scale that never changes. REQUIRES: positive and finite. Unset: a dynamic one, always a power of
  // two.
  std::optional<float> fixed = std::nullopt;
  int64_t growth_interval = 2000;  // At least 1.
};

class LossScaler {
 public:
  // State of a dynamic scale, to be saved with the model.
  struct State {
    int64_t exponent = 16;     // The scale is 2^exponent, from 2^-24 to 2^127.
    int64_t growth_steps = 0;  // Steps since the last overflow or change of the scale.
  };

  explicit LossScaler(LossScalerOptions options) : options_(options) {}

  bool is_dynamic() const { return !options_.fixed; }
  float scale() const;
  // The norm without the scale, and the factor that unscales gradients and clips them to `max_norm` (as
  // ClipFactor). `scaled`: of gradients with this scale.
  GradientNorm Unscaled(GradientNorm scaled, double max_norm) const;
  // Adapts a dynamic scale after a step. Returns true if the scale was halved from above 1. From 1 on down,
  // halving does not help against the overflow. All ranks must call it alike.
  bool Update(bool overflowed);

  const State& state() const { return state_; }
  // Errors: kInvalidArgument (a number out of its range).
  absl::Status SetState(const State& state);

 private:
  LossScalerOptions options_;
  State state_;
};

}  // namespace weft
