#include "weft/core/tensor.h"

#include <cstring>

#include "src/core/tensors/tensor_memory.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {

Tensor Tensor::Empty(DType dtype, Shape shape) {
  TensorView view = TensorView::Contiguous(nullptr, dtype, std::move(shape));
  std::shared_ptr<void> storage = internal::AllocateTensorMemory(view.bytes());
  view.data = storage.get();
  return {std::move(storage), std::move(view)};
}

Tensor Tensor::Zeros(DType dtype, Shape shape) {
  Tensor tensor = Empty(dtype, std::move(shape));
  std::memset(tensor.view_.data, 0, tensor.bytes());
  return tensor;
}

Tensor Tensor::Scalar(float value) {
  Tensor tensor = Empty(DType::kF32, {});
  *tensor.As<float>() = value;
  return tensor;
}

int64_t TensorBytesFromSystem() { return internal::TensorMemoryFromSystem(); }

Tensor Tensor::Copy() const {
  Tensor copy = Empty(dtype(), shape());
  const absl::Status copied = StridedCopy(view_, copy.view_);
  WEFT_CHECK(copied.ok(), ToStd(copied.message()));
  return copy;
}

}  // namespace weft
