#include "src/nn/base/module_checks.h"

#include <algorithm>

#include "src/nn/products/element.h"
#include "weft/core/status.h"

namespace weft {
namespace {

template <typename... Parts>
absl::Status Invalid(const Module& module, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(module.name(), ": ", parts...));
}

}  // namespace

absl::Status CheckInputCount(const Module& module, const Tensors& inputs, size_t count) {
  if (inputs.size() != count) {
    return Invalid(module, "the number of inputs is ", inputs.size(), ", the module takes ", count);
  }
  for (size_t i = 0; i < count; ++i) {
    if (!inputs[i].defined()) return Invalid(module, "input ", i, " is an undefined tensor; allocate it");
  }
  return absl::OkStatus();
}

absl::Status CheckActivation(const Module& module, const Tensor& tensor, size_t dims) {
  if (!IsComputeDType(tensor.dtype())) {
    return Invalid(module, "input is ", ToAbsl(Name(tensor.dtype())), ", the module takes f32, bf16 or f16");
  }
  if (tensor.shape().size() < dims) {
    return Invalid(module, "input has the shape ", ToString(tensor.shape()), ", the module takes at least ",
                   dims, dims == 1 ? " dim" : " dims");
  }
  if (!tensor.view().IsContiguous()) {
    return Invalid(module, "input of shape ", ToString(tensor.shape()),
                   " is not contiguous; pass its Copy()");
  }
  return absl::OkStatus();
}

absl::Status CheckTokenDims(const Module& module, const Tensor& x) {
  if (x.shape().size() == 3) return absl::OkStatus();
  return Invalid(module, "input has the shape ", ToString(x.shape()),
                 ", the module takes [batch, tokens, dim]");
}

absl::Status CheckParameterMemory(const Module& module) {
  for (const std::shared_ptr<Parameter>& parameter : module.parameters()) {
    if (parameter->data.data != nullptr || parameter->elements() == 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(module.name(), ": ", parameter->name,
                     " is used while it is sharded; call the module in a pass of the sharded model's root, "
                     "or unshard it first"));
  }
  return absl::OkStatus();
}

absl::Status CheckParameters(const Module& module, DType compute) {
  WEFT_RETURN_IF_ERROR(CheckParameterMemory(module));
  for (const std::shared_ptr<Parameter>& parameter : module.parameters()) {
    if (parameter->data.dtype == compute) continue;
    return Invalid(module, "input is ", ToAbsl(Name(compute)), ", but ", parameter->name, " is ",
                   ToAbsl(Name(parameter->data.dtype)), "; use one dtype");
  }
  return absl::OkStatus();
}

absl::Status CheckGradientMemory(const Module& module) {
  for (const std::shared_ptr<Parameter>& parameter : module.parameters()) {
    if (!parameter->requires_grad || parameter->grad.data != nullptr || parameter->elements() == 0) continue;
    WEFT_RETURN_IF_ERROR(CheckParameterMemory(module));  // The usual cause: the model is not in a pass.
    return absl::FailedPreconditionError(
        absl::StrCat(module.name(), ": ", parameter->name,
                     " has no memory for its gradient; set requires_grad before the model is sharded or "
                     "materialized"));
  }
  return absl::OkStatus();
}

absl::Status CheckForward(const Module& module, const Tensors& inputs, int64_t columns) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(module, inputs, std::max<size_t>(1, inputs.size())));
  const Tensor& x = inputs[0];
  WEFT_RETURN_IF_ERROR(CheckActivation(module, x, 1));
  if (x.dim(-1) != columns) {
    return Invalid(module, "input ", ToString(x.shape()), " has ", x.dim(-1), " columns, the weight takes ",
                   columns);
  }
  return CheckParameters(module, x.dtype());
}

absl::Status CheckGradientCount(const Module& module, const Tensors& output_gradients, size_t count) {
  if (output_gradients.size() != count) {
    return Invalid(module, "the number of gradients is ", output_gradients.size(), ", that of the outputs ",
                   count);
  }
  for (size_t i = 0; i < count; ++i) {
    if (output_gradients[i].defined()) continue;
    return Invalid(module, "the gradient of output ", i, " is an undefined tensor; allocate it");
  }
  return absl::OkStatus();
}

absl::Status CheckContiguousGradients(const Module& module, const Tensors& output_gradients, size_t count) {
  WEFT_RETURN_IF_ERROR(CheckGradientCount(module, output_gradients, count));
  for (size_t i = 0; i < count; ++i) {
    if (output_gradients[i].view().IsContiguous()) continue;
    return Invalid(module, "the gradient of output ", i, ", of shape ", ToString(output_gradients[i].shape()),
                   ", is not contiguous; pass its Copy()");
  }
  return absl::OkStatus();
}

absl::Status CheckBackward(const Module& module, const Tensors& output_gradients, size_t outputs,
                           DType compute) {
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(module, output_gradients, outputs));
  return CheckParameters(module, compute);
}

}  // namespace weft
