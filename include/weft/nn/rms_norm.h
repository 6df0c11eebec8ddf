// y = weight * round(x / sqrt(mean(x^2) + eps)): root mean square normalisation over the last dim (Zhang and
// Sennrich, 2019). Computed in fp32; `round` is to the dtype of x, before the product with the weight.
//
// Inputs: x [..., dim]. Outputs: y [..., dim].
#pragma once

#include <string>

#include "weft/nn/module.h"

namespace weft {

class RmsNorm : public Module {
 public:
  RmsNorm(std::string name, int64_t dim, float eps);

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t dim_;
  float eps_;
};

}  // namespace weft
