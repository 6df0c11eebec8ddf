#include "weft/nn/transpose.h"

#include <numeric>
#include <utility>
#include <vector>

#include "weft/core/strided_copy.h"

namespace weft {
namespace {

absl::StatusOr<Tensors> SwapLastDims(const Tensor& x) {
  const size_t dims = x.shape().size();
  WEFT_CHECK(dims >= 2, "a transpose takes a tensor of at least two dims");
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
  return SwapLastDims(inputs[0]);
}

absl::StatusOr<Tensors> Transpose::BackwardImpl(Invocation&, const Tensors& output_gradients) {
  return SwapLastDims(output_gradients[0]);
}

}  // namespace weft
