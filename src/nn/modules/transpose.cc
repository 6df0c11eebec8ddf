#include "weft/nn/transpose.h"

#include <numeric>
#include <utility>
#include <vector>

#include "src/nn/base/module_checks.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

absl::StatusOr<Tensors> SwapLastDims(const Tensor& x) {
  const size_t dims = x.shape().size();
  std::vector<int> order(dims);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[dims - 2], order[dims - 1]);
  const TensorView swapped = x.view().Permute(order);
  Tensor y = Tensor::Empty(x.dtype(), swapped.shape);
  WEFT_RETURN_IF_ERROR(StridedCopy(swapped, y.view()));
  return Tensors{std::move(y)};
}

}  // namespace

absl::StatusOr<Tensors> Transpose::ForwardImpl(Invocation&, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  WEFT_RETURN_IF_ERROR(CheckActivation(*this, inputs[0], 2));
  return SwapLastDims(inputs[0]);
}

absl::StatusOr<Tensors> Transpose::BackwardImpl(Invocation&, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckGradientCount(*this, output_gradients, 1));
  return SwapLastDims(output_gradients[0]);
}

}  // namespace weft
