#include "weft/nn/dropout.h"

#include "src/nn/base/dropout_mask.h"
#include "src/nn/base/module_checks.h"
#include "weft/core/status.h"

namespace weft {

absl::StatusOr<Tensors> Dropout::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  if (!(probability_ >= 0.0F && probability_ < 1.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": the probability is ", probability_, ", but must be at least 0 and below 1"));
  }
  if (!DropsElements(invocation, probability_)) return inputs;
  WEFT_RETURN_IF_ERROR(CheckActivation(*this, inputs[0], 2));
  invocation.Save(this, {});  // Without tensors: marks that a backward must follow.
  WEFT_ASSIGN_OR_RETURN(Tensor y, DropElements(invocation, name(), probability_, inputs[0]));
  return Tensors{std::move(y)};
}

absl::StatusOr<Tensors> Dropout::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckGradientCount(*this, output_gradients, 1));
  if (probability_ == 0.0F) return output_gradients;
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, 1));
  WEFT_ASSIGN_OR_RETURN(Tensor dx, DropElements(invocation, name(), probability_, output_gradients[0]));
  invocation.PopSaved(this);
  return Tensors{std::move(dx)};
}

}  // namespace weft
