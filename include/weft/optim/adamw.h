// AdamW kernel (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2) on slices
// of local memory. Master weights, gradients and both moments are of one type, float or double. One pass over
// memory.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/core/dtype.h"

namespace weft {

struct AdamWOptions {
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// Contiguous elements of one parameter or of several adjacent ones, with their gradients and moments.
// REQUIRES: the moments are zero before the first step.
template <typename T>
struct AdamWSliceOf {
  T* param;
  const T* grad;
  T* first_moment;
  T* second_moment;
  int64_t count;
  BF16* cast = nullptr;  // [count]: gets the updated parameters, rounded to bf16. Null: no cast.
};
using AdamWSlice = AdamWSliceOf<float>;

// Applies update number `step`, counted from 1, in the order of operations of torch.optim.AdamW:
//   g = grad * gradient_scale,  p -= p * lr * weight_decay,
//   m += (1 - beta1) * (g - m),  v = beta2 * v + (1 - beta2) * g^2,
//   p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
// `gradient_scale` is the clipping factor. The result of an element depends only on its own values, so that
// the division into slices and threads does not affect the bits.
// REQUIRES: slices do not overlap.
//
// Thread safety: any thread may call. A call uses the ThreadCount() threads of the calling thread.
void AdamWStep(absl::Span<const AdamWSlice> slices, const AdamWOptions& options, int64_t step,
               double gradient_scale = 1.0);
void AdamWStep(absl::Span<const AdamWSliceOf<double>> slices, const AdamWOptions& options, int64_t step,
               double gradient_scale = 1.0);

}  // namespace weft
