#include "weft/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include <absl/strings/str_cat.h>

#include "weft/core/reproducible_sum.h"

namespace weft {
namespace {

constexpr int64_t kLeastExponent = -24;
constexpr int64_t kLargestExponent = 127;  // The largest power of two that is a float is 2^127.

}  // namespace

float LossScaler::scale() const {
  return options_.fixed ? *options_.fixed : std::ldexp(1.0F, static_cast<int>(state_.exponent));
}

GradientNorm LossScaler::Unscaled(GradientNorm scaled, double max_norm) const {
  const double norm = scaled.norm / scale();
  return {norm, ClipFactor(norm, max_norm) / scale()};
}

bool LossScaler::Update(bool overflowed) {
  if (!is_dynamic()) return false;
  const bool is_above_one = state_.exponent > 0;
  if (overflowed) {
    state_.exponent = std::max(state_.exponent - 1, kLeastExponent);
    state_.growth_steps = 0;
  } else if (++state_.growth_steps >= options_.growth_interval) {
    state_.exponent = std::min(state_.exponent + 1, kLargestExponent);
    state_.growth_steps = 0;
  }
  return overflowed && is_above_one;
}

absl::Status LossScaler::SetState(const State& state) {
  if (state.exponent < kLeastExponent || state.exponent > kLargestExponent || state.growth_steps < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a loss scale out of range: exponent ", state.exponent,
                                                   ", ", state.growth_steps, " growth steps"));
  }
  state_ = state;
  return absl::OkStatus();
}

}  // namespace weft
