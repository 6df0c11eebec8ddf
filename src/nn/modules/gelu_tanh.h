// Gaussian error linear unit in its tanh approximation, and its slope; see weft/nn/gelu.h.
#pragma once

#include <algorithm>

#include "src/nn/kernels/vector_math.h"

namespace weft {

struct GeluTanh {
  static constexpr float kTwiceRootTwoOverPi = 1.595769122F;
  static constexpr float kCubic = 0.044715F;

  // 1/2 (1 + tanh(u)) = sigmoid(2u).
  static float Gate(float x) { return Sigmoid(kTwiceRootTwoOverPi * (x + kCubic * x * x * x)); }

  static float Value(float x) { return x * Gate(x); }
  static float Slope(float x) {
    // Outside [-10, 10] the gate is 0 or 1 in fp32. The inner slope may be infinite there, and 0 * infinity
    // is NaN.
    const float value = std::clamp(x, -10.0F, 10.0F);
    const float gate = Gate(value);
    const float inner_slope = kTwiceRootTwoOverPi * (1.0F + 3.0F * kCubic * value * value);
    return gate + value * gate * (1.0F - gate) * inner_slope;
  }
};

}  // namespace weft
