// A tensor view together with shared ownership of its memory: what modules pass to each other.
//
// Thread safety: a value; copies share memory.
// Lifetime: the memory lives until the last copy goes.
#pragma once

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

  // Uninitialised, row-major, 64-byte aligned.
  static Tensor Empty(DType dtype, Shape shape);
  static Tensor Zeros(DType dtype, Shape shape);
  // A tensor over memory that the caller keeps alive.
  static Tensor Borrow(TensorView view) { return {nullptr, std::move(view)}; }

  bool defined() const { return view_.data != nullptr || !view_.shape.empty(); }
  const TensorView& view() const { return view_; }
  // What keeps the memory; null if the caller does.
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
  // Another window on the same memory: a slice or a permutation of view().
  Tensor Window(TensorView view) const { return {storage_, std::move(view)}; }
  // Its elements in memory of their own, row-major.
  Tensor Copy() const;
  // The same memory under another shape of the same element count.
  Tensor Reshape(Shape shape) const { return {storage_, view_.Reshape(std::move(shape))}; }

 private:
  std::shared_ptr<void> storage_;
  TensorView view_;
};

// Bytes that the tensors of this process have taken from the system so far. What a tensor leaves serves later
// ones of its size, so a loop that makes the same tensors over and over stops taking any.
int64_t TakenTensorBytes();

}  // namespace weft
