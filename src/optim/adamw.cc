#include "weft/optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/core/vector_clones.h"

namespace weft {
namespace {

constexpr int64_t kGrain = int64_t{32} * 1024;

// Constants of one step, computed in double and rounded once.
struct Coefficients {
  float kept_weight, gradient_scale;
  float first_rate, second_kept, second_rate;
  float step_size, second_correction, eps;
};

Coefficients CoefficientsOf(const AdamWOptions& options, int64_t step, float gradient_scale) {
  const double first_correction = 1.0 - std::pow(options.beta1, static_cast<double>(step));
  const double second_correction = 1.0 - std::pow(options.beta2, static_cast<double>(step));
  return {static_cast<float>(1.0 - options.lr * options.weight_decay),
          gradient_scale,
          static_cast<float>(1.0 - options.beta1),
          static_cast<float>(options.beta2),
          static_cast<float>(1.0 - options.beta2),
          static_cast<float>(options.lr / first_correction),
          static_cast<float>(std::sqrt(second_correction)),
          static_cast<float>(options.eps)};
}

WEFT_VECTOR_CLONES void UpdateRun(const Coefficients& c, float* __restrict param,
                                  const float* __restrict grad, float* __restrict first,
                                  float* __restrict second, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * c.gradient_scale;
    const float m = first[i] + c.first_rate * (g - first[i]);
    const float v = second[i] * c.second_kept + c.second_rate * (g * g);
    first[i] = m;
    second[i] = v;
    const float denominator = std::sqrt(v) / c.second_correction + c.eps;
    param[i] = param[i] * c.kept_weight - c.step_size * (m / denominator);
  }
}

}  // namespace

void AdamWStep(absl::Span<const AdamWSlice> slices, const AdamWOptions& options, int64_t step,
               float gradient_scale) {
  WEFT_CHECK(step >= 1, "the step of an AdamW update must be at least 1");
  const Coefficients coefficients = CoefficientsOf(options, step, gradient_scale);
  for (const AdamWSlice& slice : slices) {
    ParallelFor(slice.count, kGrain, [&](int64_t begin, int64_t end) {
      UpdateRun(coefficients, slice.param + begin, slice.grad + begin, slice.first_moment + begin,
                slice.second_moment + begin, end - begin);
    });
  }
}

}  // namespace weft
