// Norms of the gradients of a model, and the factors that clip them.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <absl/container/flat_hash_map.h>

#include "weft/core/reproducible_sum.h"
#include "weft/nn/parameter.h"

namespace weft {

enum class NormType : uint8_t { kOne, kTwo, kInfinity };

// Parameters whose gradients are clipped together, apart from those of other sets.
struct ClipSet {
  std::function<bool(const Parameter&)> matches;
  double max_norm;  // At least 0, which makes all finite gradients zero, or kNoClipping.
};

// Gradients in memory of the client that count in place of reduced ones: this rank's elements of a parameter,
// end to end, in its master dtype. REQUIRES: all replicas hold the same values.
using ExternalGradients = absl::flat_hash_map<const Parameter*, const std::byte*>;

struct GradientNorm {
  // The norm of all gradients of a set, before clipping; infinite if a gradient is not finite. Sums of 1- and
  // 2-norms depend on no order: weft/core/reproducible_sum.h (Demmel and Nguyen, 2015).
  double norm;
  // Multiply gradients by this, rounded to their dtype: ClipFactor (weft/core/reproducible_sum.h) of the norm
  // and the set's max_norm.
  double factor;
};

}  // namespace weft
