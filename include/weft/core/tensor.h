// A tensor view with shared ownership of its memory. Modules exchange activations and gradients as Tensors.
//
// Thread safety: a value; copies share memory.
// Lifetime: the memory lives until the last copy is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "weft/core/tensor_view.h"

namespace weft {

class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<void> storage, TensorView view)
      : storage_(std::move(storage)), view_(std::move(view)) {}

  // Row-major and 64-byte aligned; Empty leaves the elements uninitialized. Throws
  // std::bad_alloc if there is no memory; `weft` then ends with exit code 1.
  static Tensor Empty(DType dtype, Shape shape);
  static Tensor Zeros(DType dtype, Shape shape);
  // One f32 element of shape {} in memory of its own, such as the gradient of a loss.
  static Tensor Scalar(float value);
  // A tensor over memory that the caller keeps alive.
  static Tensor Borrow(TensorView view) { return {nullptr, std::move(view)}; }

  bool defined() const { return view_.data != nullptr || !view_.shape.empty(); }
  const TensorView& view() const { return view_; }
  // The owner of the memory; null for a borrowed tensor.
  const std::shared_ptr<void>& storage() const { return storage_; }
  DType dtype() const { return view_.dtype; }
  const Shape& shape() const { return view_.shape; }
  int64_t dim(int index) const {
    return view_.shape[static_cast<size_t>(index < 0 ? index + static_cast<int>(view_.shape.size()) : index)];
  }
  int64_t elements() const { return view_.elements(); }
  size_t bytes() const { return view_.bytes(); }
  template <typename T>
  T* As() const {
    return view_.As<T>();
  }
  // Another view of the same memory, such as a slice or a permutation of view().
  Tensor Window(TensorView view) const { return {storage_, std::move(view)}; }
  // A row-major copy of the elements in newly allocated memory.
  Tensor Copy() const;
  // The same memory with another shape.
  // REQUIRES: the view is contiguous; the element count is the same.
  Tensor Reshape(Shape shape) const { return {storage_, view_.Reshape(std::move(shape))}; }

 private:
  std::shared_ptr<void> storage_;
  TensorView view_;
};

// Total bytes that this process has allocated from malloc for tensors so far; never decreases. Freed blocks
// are cached for tensors of the same size. A loop that creates the same tensors in every iteration therefore
// stops adding to it.
int64_t TensorBytesFromSystem();

}  // namespace weft
