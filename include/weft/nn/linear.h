// Linear layer: y_i = x W_i^T + b_i for one or several weights W_i [out_features_i, in_features] with the
// same input, such as the query, key and value projections. The weights are adjacent in the parameter list,
// and the biases, if there are any, follow them. A bias starts at zero. The matrix products of forward add
// the bias, and those of backward add up the gradient of x, without separate passes.
//
// Inputs: x [..., in_features]. Outputs: y_i [..., out_features_i] in the dtype of x; the caller may
// overwrite them. The module's ResultAllocators allocate the outputs and the gradient of x.
// Saves: x. Backward writes or adds dW_i = dy_i^T x to the gradient of each W_i, and the sum of dy_i over the
// tokens to that of each b_i, summed in fp32 and rounded once.
#pragma once

#include <string>
#include <vector>

#include "weft/nn/module.h"

namespace weft {

class Linear : public Module {
 public:
  struct Output {
    std::string parameter;  // The part of the parameter's name after the module's name: "q_proj.weight".
    int64_t features;
    std::string bias = "";  // The same of the bias: "q_proj.bias". Empty: no bias.
  };

  // One weight, named "weight", and no bias.
  Linear(std::string name, int64_t in_features, int64_t out_features, Initializer initializer = {});
  Linear(std::string name, int64_t in_features, const std::vector<Output>& outputs,
         Initializer initializer = {});

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  absl::StatusOr<Tensor> ForwardOf(const Tensor& x, size_t output) const;

  int64_t in_features_;
  std::vector<Parameter*> biases_;  // For each output; null without a bias.
};

}  // namespace weft
