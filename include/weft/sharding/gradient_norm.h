// Norm of all gradients of a model, and the factor that clips them to it.
#pragma once

#include <cstdint>

namespace weft {

enum class NormType : uint8_t { kOne, kTwo, kInfinity };

struct GradientNorm {
  double norm;   // Of all parameters, before clipping; infinite if a gradient is not finite.
  float factor;  // Multiply gradients by this: ClipFactor(norm, max_norm).
};

}  // namespace weft
