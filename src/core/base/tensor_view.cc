#include "weft/core/tensor_view.h"

#include <limits>
#include <numeric>
#include <utility>

#include <absl/strings/str_join.h>

namespace weft {

namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// REQUIRES: neither is negative.
int64_t SaturatedProduct(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMax : product;
}

}  // namespace

int64_t ElementCount(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, SaturatedProduct);
}

std::string ToString(const Shape& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

TensorView TensorView::Contiguous(void* data, DType dtype, Shape shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride = SaturatedProduct(stride, shape[dim]);
  }
  return {data, dtype, std::move(shape), std::move(strides)};
}

size_t TensorView::bytes() const {
  return static_cast<size_t>(SaturatedProduct(elements(), static_cast<int64_t>(SizeOf(dtype))));
}

bool TensorView::IsContiguous() const {
  if (elements() == 0) return true;
  int64_t expected = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] != 1 && strides[dim] != expected) return false;
    expected = SaturatedProduct(expected, shape[dim]);
  }
  return true;
}

TensorView TensorView::Slice(int dim, int64_t start, int64_t length) const {
  const int rank = static_cast<int>(shape.size());
  const int index = dim < 0 ? dim + rank : dim;
  WEFT_CHECK(index >= 0 && index < rank, "slice of a dim that the view does not have");
  const auto at = static_cast<size_t>(index);
  WEFT_CHECK(start >= 0 && length >= 0 && start <= shape[at] - length, "slice outside its dim");
  TensorView window = *this;
  window.shape[at] = length;
  if (data != nullptr) {
    window.data = static_cast<std::byte*>(data) + BytesOf(start * strides[at], dtype);
  }
  return window;
}

TensorView TensorView::Permute(absl::Span<const int> order) const {
  WEFT_CHECK(order.size() == shape.size(), "permutation of another number of dims than the view has");
  TensorView permuted = *this;
  uint64_t seen = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto from = static_cast<size_t>(order[i]);
    WEFT_CHECK(from < shape.size() && (seen >> from & 1U) == 0, "not a permutation of the dims");
    seen |= uint64_t{1} << from;
    permuted.shape[i] = shape[from];
    permuted.strides[i] = strides[from];
  }
  return permuted;
}

TensorView TensorView::Reshape(Shape new_shape) const {
  WEFT_CHECK(IsContiguous(), "reshape of a view that is not contiguous");
  WEFT_CHECK(ElementCount(new_shape) == elements(), "reshape to another element count than the view has");
  return Contiguous(data, dtype, std::move(new_shape));
}

}  // namespace weft
