// Stochastic gradient descent on slices of local memory, with momentum as in torch.optim.SGD. One pass over
// memory.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

namespace weft {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

// Contiguous elements of one parameter or of several adjacent ones, with their gradients.
struct SgdSlice {
  float* param;
  const float* grad;
  float* momentum_buffer;  // Null without momentum. REQUIRES: zero before the first step.
  int64_t count;
};

// Applies one update, in the order of operations of torch.optim.SGD without dampening:
//   g = grad * gradient_scale + weight_decay * p,  b = momentum * b + g,
//   p -= lr * (nesterov ? g + momentum * b : b).
// The first b is g. The result of an element depends only on its own values, so that the division into slices
// and threads does not affect the bits.
// REQUIRES: slices do not overlap. Nesterov needs momentum.
//
// Thread safety: any thread may call. A call uses the ThreadCount() threads of the calling thread.
void SgdStep(absl::Span<const SgdSlice> slices, const SgdOptions& options, double gradient_scale = 1.0);

}  // namespace weft
