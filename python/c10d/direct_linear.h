// Linear layer whose backward writes the weight's gradient to its place in a gradient image.
//
// A layer in Python does the same, but a step of a model calls it for each layer, forward and backward.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace weft::python {

// Adds direct_linear(x, weight, bias, begin_write) to the module. It computes torch.nn.functional.linear. In
// backward, `begin_write()` returns the tensor of the weight's shape that receives the gradient, and whether
// the gradient is added to what it holds. Autograd sees no gradient of the weight.
void BindDirectLinear(pybind11::module_& module);

}  // namespace weft::python
