// Norms of the gradients of a model, and the factors that clip them.
#pragma once

#include <cstdint>
#include <functional>

#include "weft/nn/parameter.h"

namespace weft {

enum class NormType : uint8_t { kOne, kTwo, kInfinity };

// Parameters whose gradients are clipped together, apart from those of other sets.
struct ClipSet {
  std::function<bool(const Parameter&)> matches;
  double max_norm;  // 0: no clipping.
};

struct GradientNorm {
  double norm;  // The norm over a set of parameters, before clipping; infinite if a gradient is not finite.
  // Multiply gradients by this, rounded to their dtype: ClipFactor(norm, max_norm).
  double factor;
};

}  // namespace weft
