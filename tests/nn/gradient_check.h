// Holds a module against a function in double: its outputs against the function's, its gradients against the
// function's central differences.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "weft/nn/module.h"

namespace weft {

using Doubles = std::vector<double>;

// Takes the inputs of a module and then its parameters, in the order of AllParameters(), all flattened;
// returns its outputs.
using Oracle = std::function<std::vector<Doubles>(const std::vector<Doubles>& inputs_and_parameters)>;

struct GradientCheckOptions {
  DType dtype = DType::kF32;       // Of inputs and parameters.
  DType grad_dtype = DType::kF32;  // Of the parameters' gradients.
  // Allowed error, relative to the largest value of the tensor in question.
  double tolerance = 1e-5;
  // Elements of each tensor that are differentiated alone; beyond, they are sampled evenly. All together are
  // moved in one more random direction.
  int64_t elements = 200;
};

// Values in [-1, 1) that depend on salt and index, rounded to `dtype`.
Tensor TestTensor(DType dtype, Shape shape, int64_t salt);
Tensor TestIds(Shape shape, int64_t vocab_size, int64_t salt);

// Gives the module's parameters test values and checks: outputs; gradients of floating-point inputs and of
// parameters; that a second backward adds to the parameters' gradients; that a parameter that is not trained
// gets none; and that the invocation ends empty.
void CheckGradients(Module& module, const Tensors& inputs, const Oracle& oracle,
                    const GradientCheckOptions& options = {});

}  // namespace weft
