#include "weft/optim/sgd.h"

#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/core/vector_clones.h"

namespace weft {
namespace {

constexpr int64_t kGrain = int64_t{32} * 1024;

// Constants of one step, rounded once.
struct Coefficients {
  float gradient_scale, weight_decay, momentum;
  float of_gradient, of_buffer;  // The step is of_gradient * g + of_buffer * b.
  float lr;
};

Coefficients CoefficientsOf(const SgdOptions& options, double gradient_scale) {
  const auto momentum = static_cast<float>(options.momentum);
  return {static_cast<float>(gradient_scale),
          static_cast<float>(options.weight_decay),
          momentum,
          options.nesterov ? 1.0F : 0.0F,
          options.nesterov ? momentum : 1.0F,
          static_cast<float>(options.lr)};
}

WEFT_VECTOR_CLONES void UpdateRun(const Coefficients& c, float* __restrict param,
                                  const float* __restrict grad, float* __restrict buffer, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * c.gradient_scale + c.weight_decay * param[i];
    const float b = buffer[i] * c.momentum + g;
    buffer[i] = b;
    param[i] = param[i] - c.lr * (c.of_gradient * g + c.of_buffer * b);
  }
}

WEFT_VECTOR_CLONES void UpdateRunWithoutMomentum(const Coefficients& c, float* __restrict param,
                                                 const float* __restrict grad, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    param[i] = param[i] - c.lr * (grad[i] * c.gradient_scale + c.weight_decay * param[i]);
  }
}

}  // namespace

void SgdStep(absl::Span<const SgdSlice> slices, const SgdOptions& options, double gradient_scale) {
  WEFT_CHECK(options.momentum != 0 || !options.nesterov, "SGD with nesterov needs momentum");
  const Coefficients coefficients = CoefficientsOf(options, gradient_scale);
  for (const SgdSlice& slice : slices) {
    ParallelFor(slice.count, kGrain, [&](int64_t begin, int64_t end) {
      if (options.momentum == 0) {
        UpdateRunWithoutMomentum(coefficients, slice.param + begin, slice.grad + begin, end - begin);
      } else {
        UpdateRun(coefficients, slice.param + begin, slice.grad + begin, slice.momentum_buffer + begin,
                  end - begin);
      }
    });
  }
}

}  // namespace weft
