#include "weft/nn/heads.h"

#include "src/nn/base/module_checks.h"
#include "weft/core/strided_copy.h"

namespace weft {

absl::StatusOr<Tensors> SplitHeads::ForwardImpl(Invocation&, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  const Tensor& x = inputs[0];
  WEFT_RETURN_IF_ERROR(CheckActivation(*this, x));
  const int64_t all_heads = parts_ * heads_;
  if (x.shape().size() != 3 || all_heads < 1 || x.dim(2) % all_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": input has the shape ", ToString(x.shape()),
                     ", the module takes [batch, tokens, columns] with a multiple of ", parts_, " x ", heads_,
                     " columns, at least one"));
  }
  const TensorView heads = x.view().Reshape({x.dim(0), x.dim(1), all_heads, x.dim(2) / all_heads});
  Tensors outputs;
  for (int64_t part = 0; part < parts_; ++part) {
    outputs.push_back(x.Window(heads.Slice(2, part * heads_, heads_)));
  }
  return outputs;
}

absl::StatusOr<Tensors> SplitHeads::BackwardImpl(Invocation&, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckGradientCount(*this, output_gradients, static_cast<size_t>(parts_)));
  const Tensor& first = output_gradients[0];
  const int64_t all_heads = parts_ * heads_;
  const Tensor gradient = Tensor::Empty(first.dtype(), {first.dim(0), first.dim(1), all_heads, first.dim(3)});
  for (int64_t part = 0; part < parts_; ++part) {
    WEFT_RETURN_IF_ERROR(StridedCopy(output_gradients[static_cast<size_t>(part)].view(),
                                     gradient.view().Slice(2, part * heads_, heads_)));
  }
  return Tensors{gradient.Reshape({first.dim(0), first.dim(1), all_heads * first.dim(3)})};
}

absl::StatusOr<Tensors> MergeHeads::ForwardImpl(Invocation&, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  const Tensor& x = inputs[0];
  WEFT_RETURN_IF_ERROR(CheckActivation(*this, x));
  if (x.shape().size() != 4 || x.dim(2) != heads_) {
    return absl::InvalidArgumentError(absl::StrCat(name(), ": input has the shape ", ToString(x.shape()),
                                                   ", the module takes [batch, tokens, ", heads_,
                                                   " heads, head_dim]"));
  }
  return Tensors{x.Reshape({x.dim(0), x.dim(1), x.dim(2) * x.dim(3)})};
}

absl::StatusOr<Tensors> MergeHeads::BackwardImpl(Invocation&, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, 1));
  const Tensor& gradient = output_gradients[0];
  return Tensors{gradient.Reshape({gradient.dim(0), gradient.dim(1), heads_, gradient.dim(2) / heads_})};
}

}  // namespace weft
