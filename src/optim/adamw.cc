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
template <typename T>
struct Coefficients {
  T kept_weight, gradient_scale;
  T first_rate, second_kept, second_rate;
  T step_size, second_correction, eps;
};

template <typename T>
Coefficients<T> CoefficientsOf(const AdamWOptions& options, int64_t step, double gradient_scale) {
  const double first_correction = 1.0 - std::pow(options.beta1, static_cast<double>(step));
  const double second_correction = 1.0 - std::pow(options.beta2, static_cast<double>(step));
  return {static_cast<T>(1.0 - options.lr * options.weight_decay),
          static_cast<T>(gradient_scale),
          static_cast<T>(1.0 - options.beta1),
          static_cast<T>(options.beta2),
          static_cast<T>(1.0 - options.beta2),
          static_cast<T>(options.lr / first_correction),
          static_cast<T>(std::sqrt(second_correction)),
          static_cast<T>(options.eps)};
}

// kCasts: whether the results are also written to `cast`.
template <bool kCasts, typename T>
WEFT_VECTOR_CLONES void UpdateRun(const Coefficients<T>& c, T* __restrict param, const T* __restrict grad,
                                  T* __restrict first, T* __restrict second, BF16* __restrict cast,
                                  int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const T g = grad[i] * c.gradient_scale;
    const T m = first[i] + c.first_rate * (g - first[i]);
    const T v = second[i] * c.second_kept + c.second_rate * (g * g);
    first[i] = m;
    second[i] = v;
    const T denominator = std::sqrt(v) / c.second_correction + c.eps;
    const T updated = param[i] * c.kept_weight - c.step_size * (m / denominator);
    param[i] = updated;
    if constexpr (kCasts) cast[i] = ToBF16(static_cast<float>(updated));
  }
}

template <typename T>
void StepOf(absl::Span<const AdamWSliceOf<T>> slices, const AdamWOptions& options, int64_t step,
            double gradient_scale) {
  WEFT_CHECK(step >= 1, "the step of an AdamW update must be at least 1");
  const Coefficients coefficients = CoefficientsOf<T>(options, step, gradient_scale);
  for (const AdamWSliceOf<T>& slice : slices) {
    ParallelFor(slice.count, kGrain, [&](int64_t begin, int64_t end) {
      const bool casts = slice.cast != nullptr;
      (casts ? UpdateRun<true, T> : UpdateRun<false, T>)(coefficients, slice.param + begin,
                                                         slice.grad + begin, slice.first_moment + begin,
                                                         slice.second_moment + begin,
                                                         casts ? slice.cast + begin : nullptr, end - begin);
    });
  }
}

}  // namespace

void AdamWStep(absl::Span<const AdamWSlice> slices, const AdamWOptions& options, int64_t step,
               double gradient_scale) {
  StepOf(slices, options, step, gradient_scale);
}

void AdamWStep(absl::Span<const AdamWSliceOf<double>> slices, const AdamWOptions& options, int64_t step,
               double gradient_scale) {
  StepOf(slices, options, step, gradient_scale);
}

}  // namespace weft
