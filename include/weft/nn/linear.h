// y_i = x W_i^T for one or several weights that share their input, such as the query, key and value
// projections: their parameters are neighbours, and the gradient of x is summed by the products themselves.
//
// Inputs: x [..., in_features]. Outputs: y_i [..., out_features_i], which the caller may overwrite. Outputs
// and the gradient of x are made by the module's ResultAllocators.
#pragma once

#include <string>
#include <vector>

#include "weft/nn/module.h"

namespace weft {

class Linear : public Module {
 public:
  struct Output {
    std::string parameter;  // Appended to the module's name: "q_proj.weight".
    int64_t features;
  };

  // One weight, named "weight".
  Linear(std::string name, int64_t in_features, int64_t out_features, Initializer initializer = {});
  Linear(std::string name, int64_t in_features, const std::vector<Output>& outputs,
         Initializer initializer = {});

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t in_features_;
};

}  // namespace weft
