#include "weft/nn/gelu.h"

#include <utility>

#include "src/nn/base/module_checks.h"
#include "src/nn/modules/gelu_tanh.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

constexpr int64_t kGrain = int64_t{8} * 1024;

template <typename T>
void Activate(const T* __restrict x, int64_t count, T* __restrict y) {
  for (int64_t i = 0; i < count; ++i) y[i] = Round<T>(GeluTanh::Value(Load(x[i])));
}

template <typename T>
void ActivationGradient(const T* __restrict x, const T* __restrict dy, int64_t count, T* __restrict dx) {
  for (int64_t i = 0; i < count; ++i) dx[i] = Round<T>(Load(dy[i]) * GeluTanh::Slope(Load(x[i])));
}

}  // namespace

absl::StatusOr<Tensors> Gelu::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  const Tensor& x = inputs[0];
  WEFT_RETURN_IF_ERROR(CheckActivation(*this, x));
  Tensor y = Tensor::Empty(x.dtype(), x.shape());
  WithElementType(x.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(x.elements(), kGrain, [&](int64_t begin, int64_t end) {
      Activate(x.As<T>() + begin, end - begin, y.As<T>() + begin);
    });
  });
  if (invocation.is_saving()) invocation.Save(this, {x});
  return Tensors{std::move(y)};
}

absl::StatusOr<Tensors> Gelu::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, 1));
  const Tensor x = invocation.PopSaved(this)[0];
  const Tensor& dy = output_gradients[0];
  Tensor dx = Tensor::Empty(x.dtype(), x.shape());
  WithElementType(x.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(x.elements(), kGrain, [&](int64_t begin, int64_t end) {
      ActivationGradient(x.As<T>() + begin, dy.As<T>() + begin, end - begin, dx.As<T>() + begin);
    });
  });
  return Tensors{std::move(dx)};
}

}  // namespace weft
