// Gradient check of a module against an oracle, a function in double: compares the module's outputs with the
// oracle's, and its gradients with central differences of the oracle.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/nn/module.h"

namespace weft {

using Doubles = std::vector<double>;
using Values = std::vector<Doubles>;  // Of several tensors.

// Reference of a module. Takes the module's inputs, then its parameters in the order of AllParameters(), all
// flattened. Returns the outputs.
using Oracle = std::function<Values(const Values& inputs_and_parameters)>;

struct GradientCheckOptions {
  DType dtype = DType::kF32;       // Dtype of inputs and parameters.
  DType grad_dtype = DType::kF32;  // Dtype of the parameters' gradients.
  // Allowed error, relative to the largest absolute value of the compared tensor.
  double tolerance = 1e-5;
  int64_t elements = 200;  // As DifferenceOptions::elements.
};

struct DifferenceOptions {
  double tolerance;  // Allowed error, relative to the largest absolute value of the gradient.
  double step = 1e-5;
  // At least this number of elements is differentiated one by one, sampled evenly from larger tensors.
  int64_t elements = 200;
};

// The dtypes in which layers are checked. bf16 and f16 have 8 and 11 significant bits: a layer rounds its
// result, and at most one intermediate value.
inline constexpr GradientCheckOptions kGradientDtypes[] = {
    {},
    {.grad_dtype = DType::kBF16, .tolerance = 0x1p-7},
    {.dtype = DType::kBF16, .tolerance = 0x1p-6},
    {.dtype = DType::kBF16, .grad_dtype = DType::kBF16, .tolerance = 0x1p-6},
    {.dtype = DType::kF16, .tolerance = 0x1p-9},
    {.dtype = DType::kF16, .grad_dtype = DType::kF16, .tolerance = 0x1p-9},
};

// A tensor of pseudo-random values in [-1, 1), which depend on salt and index, rounded to `dtype`.
Tensor TestTensor(DType dtype, Shape shape, int64_t salt);
// The same with i32 values in [0, vocab_size).
Tensor TestIds(Shape shape, int64_t vocab_size, int64_t salt);

// Expects that `gradient` agrees with central differences of `function` at `point`. One further difference
// moves all elements in a random direction; its limit is larger by the root of the number of elements.
void ExpectDifferences(const std::function<double(const Doubles& moved)>& function, const Doubles& point,
                       const Doubles& gradient, const DifferenceOptions& options, const std::string& what);

// Fills the module's parameters with test values, runs passes, and checks:
//   the outputs, with and without gradients;
//   the gradients of floating-point inputs and of parameters;
//   that a second backward adds to the gradients of parameters;
//   that a parameter without requires_grad gets no gradient;
//   that nothing is left saved in the invocation.
void CheckGradients(Module& module, const Tensors& inputs, const Oracle& oracle,
                    const GradientCheckOptions& options = {});

}  // namespace weft
