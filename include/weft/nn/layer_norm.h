// Layer normalization over the last dim: y = weight * (x - mean(x)) / sqrt(variance(x) + eps) + bias (Ba,
// Kiros and Hinton, "Layer Normalization", 2016). Computed in fp32 and rounded once, as torch.nn.LayerNorm
// does.
//
// Inputs: x [..., dim]. Outputs: y [..., dim] in the dtype of x; the caller may overwrite it. The module's
// ResultAllocators allocate y. Weight and bias are [dim].
// Saves: x, and the mean and the factor 1 / sqrt(variance(x) + eps) of each token, f32 [2, tokens]. Backward
// writes or adds the gradients of weight and bias, summed over the tokens in fp32 and rounded once.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

class LayerNorm : public Module {
 public:
  LayerNorm(std::string name, int64_t dim, float eps);

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  Tensor InputGradient(const Tensor& x, const Tensor& dy, const Tensor& statistics) const;

  int64_t dim_;
  float eps_;
};

}  // namespace weft
