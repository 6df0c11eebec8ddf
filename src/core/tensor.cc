#include "weft/core/tensor.h"

#include <cstdlib>
#include <cstring>

namespace weft {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

Tensor Tensor::Empty(DType dtype, Shape shape) {
  TensorView view = TensorView::Contiguous(nullptr, dtype, std::move(shape));
  // aligned_alloc wants a multiple of the alignment; an empty tensor still has an address.
  const size_t bytes = (view.bytes() / kAlignment + 1) * kAlignment;
  view.data = std::aligned_alloc(kAlignment, bytes);
  WEFT_CHECK(view.data != nullptr, absl::StrCat("out of memory for a tensor of ", bytes, " bytes"));
  std::shared_ptr<void> storage(view.data, [](void* data) { std::free(data); });
  return {std::move(storage), std::move(view)};
}

Tensor Tensor::Zeros(DType dtype, Shape shape) {
  Tensor tensor = Empty(dtype, std::move(shape));
  std::memset(tensor.view_.data, 0, tensor.bytes());
  return tensor;
}

}  // namespace weft
