// Root mean square normalization over the last dim: y = weight * round(x / sqrt(mean(x^2) + eps)) (Zhang and
// Sennrich, "Root Mean Square Layer Normalization", 2019, section 4). Computed in fp32. `round` is to the
// dtype of x and precedes the product with the weight, as in Hugging Face's LlamaRMSNorm.
//
// With an offset, y = round((offset + weight) * x / sqrt(mean(x^2) + eps)), as in GemmaRMSNorm with an offset
// of 1. The weight starts at 1 - offset.
//
// Inputs: x [..., dim]. Outputs: y [..., dim] in the dtype of x. The weight is [dim]. The module's
// ResultAllocators allocate the outputs.
// Saves: x, and the factor 1 / sqrt(mean(x^2) + eps) of each token, f32 [tokens]. Backward writes or adds the
// weight's gradient, summed over the tokens in fp32 and rounded once.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

class RmsNorm : public Module {
 public:
  RmsNorm(std::string name, int64_t dim, float eps, float offset = 0.0F);

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t dim_;
  float eps_;
  float offset_;
};

}  // namespace weft
