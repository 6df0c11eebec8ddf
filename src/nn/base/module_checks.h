// Checks of what callers pass to modules. Messages begin with the module's name, and say what was passed and
// what the module takes.
//
// Errors of all: kInvalidArgument, unless a function says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include <absl/status/status.h>

#include "weft/nn/module.h"

namespace weft {

// OK if there are `count` inputs, all of them defined.
absl::Status CheckInputCount(const Module& module, const Tensors& inputs, size_t count);
// OK if there is an error-free `tensor` of activations: contiguous, f32, bf16 or f16, with at least `dims`
// dims.
absl::Status CheckActivation(const Module& module, const Tensor& tensor, size_t dims = 0);
// OK if `x` is [batch, tokens, dim].
absl::Status CheckTokenDims(const Module& module, const Tensor& x);
// OK if the parameters of `module` itself can be read, in the dtype `compute` of the activations.
// Errors: also kFailedPrecondition (a parameter is sharded).
absl::Status CheckParameters(const Module& module, DType compute);

// The check of all modules before each forward: OK if the parameters of `module` itself can be read.
// Errors: kFailedPrecondition (a parameter is sharded).
absl::Status CheckParameterMemory(const Module& module);
// The check of all modules before each backward, which need not read parameters: OK if each parameter of
// `module` itself that has requires_grad has memory for its gradient.
// Errors: kFailedPrecondition.
absl::Status CheckGradientMemory(const Module& module);

// The checks of a module whose first input is [..., columns], before its forward.
absl::Status CheckForward(const Module& module, const Tensors& inputs, int64_t columns);
// OK if there are `count` gradients of outputs, all of them defined. Their shapes are those of the outputs:
// see Invocation::CheckGradients.
absl::Status CheckGradientCount(const Module& module, const Tensors& output_gradients, size_t count);
// The same, and OK only if the gradients are contiguous.
absl::Status CheckContiguousGradients(const Module& module, const Tensors& output_gradients, size_t count);
// The checks of a module that reads its parameters and has `outputs` outputs, before its backward. Call it
// before PopSaved, so that backward can be called again after an error.
absl::Status CheckBackward(const Module& module, const Tensors& output_gradients, size_t outputs,
                           DType compute);

}  // namespace weft
