#include "sharding/model/boundary_casts.h"

#include <algorithm>
#include <utility>

#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

bool IsFloatingTensor(const Tensor& tensor) { return tensor.defined() && IsFloating(tensor.dtype()); }

absl::StatusOr<Tensor> Cast(const Tensor& tensor, DType dtype) {
  if (!IsFloatingTensor(tensor) || tensor.dtype() == dtype) return tensor;
  Tensor cast = Tensor::Empty(dtype, tensor.shape());
  WEFT_RETURN_IF_ERROR(StridedCopy(tensor.view(), cast.view()));
  return cast;
}

// Tensors without data: backward needs their dtypes only.
Tensors Prototypes(const Tensors& tensors) {
  Tensors prototypes;
  for (const Tensor& tensor : tensors) {
    prototypes.push_back(Tensor::Borrow({nullptr, tensor.dtype(), tensor.shape(), {}}));
  }
  return prototypes;
}

absl::Status CastAll(Tensors& tensors, DType dtype) {
  for (Tensor& tensor : tensors) {
    WEFT_ASSIGN_OR_RETURN(tensor, Cast(tensor, dtype));
  }
  return absl::OkStatus();
}

// Casts tensors in forward, and saves their dtypes.
Module::Hook CastForward(DType dtype) {
  return [dtype](Module& module, Invocation& invocation, Tensors& tensors) {
    if (invocation.is_saving()) invocation.Save(&module, Prototypes(tensors));
    return CastAll(tensors, dtype);
  };
}

// Casts gradients back in backward.
absl::Status CastBack(Module& module, Invocation& invocation, Tensors& gradients) {
  const Tensors prototypes = invocation.PopSaved(&module);
  const size_t count = std::min(prototypes.size(), gradients.size());
  for (size_t i = 0; i < count; ++i) {
    if (!IsFloatingTensor(prototypes[i])) continue;
    WEFT_ASSIGN_OR_RETURN(gradients[i], Cast(gradients[i], prototypes[i].dtype()));
  }
  return absl::OkStatus();
}

}  // namespace

BoundaryCasts::~BoundaryCasts() {
  for (const auto& [module, id] : registered_) module->RemoveHook(id);
}

void BoundaryCasts::CastInputs(Module& module, DType dtype) {
  registered_.emplace_back(&module, module.AddForwardPreHook(CastForward(dtype)));
  registered_.emplace_back(&module, module.AddBackwardPostHook(CastBack));
}

void BoundaryCasts::CastOutputs(Module& module, DType dtype) {
  registered_.emplace_back(&module, module.AddForwardPostHook(CastForward(dtype)));
  registered_.emplace_back(&module, module.AddBackwardPreHook(CastBack));
}

}  // namespace weft
