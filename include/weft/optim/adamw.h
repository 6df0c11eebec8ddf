// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) on the local shard: master
// weights, gradients and both moments in fp32, one pass over memory.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

namespace weft {

struct AdamWOptions {
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// Neighbouring elements of a parameter, or of several: the update knows no boundaries. Moments start as
// zeros.
struct AdamWSlice {
  float* param;
  const float* grad;
  float* first_moment;
  float* second_moment;
  int64_t count;
};

// Update number `step`, from 1, in the order of operations of torch.optim.AdamW:
//   g = grad gradient_scale,  p -= p lr decay,  m += (1 - beta1)(g - m),  v = beta2 v + (1 - beta2) g^2,
//   p -= lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
// `gradient_scale` is the clipping factor. An element's result depends on nothing but its own values.
//
// Thread safety: slices must not overlap; loops run on the caller's threads.
void AdamWStep(absl::Span<const AdamWSlice> slices, const AdamWOptions& options, int64_t step,
               float gradient_scale = 1.0F);

}  // namespace weft
