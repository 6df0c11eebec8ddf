#include "weft/nn/gelu.h"

#include <algorithm>
#include <utility>

#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

constexpr int64_t kGrain = int64_t{8} * 1024;
constexpr float kTwiceRootTwoOverPi = 1.595769122F;
constexpr float kCubic = 0.044715F;

// 1/2 (1 + tanh(u)) = sigmoid(2u).
float Gate(float x) { return Sigmoid(kTwiceRootTwoOverPi * (x + kCubic * x * x * x)); }

template <typename T>
void Activate(const T* __restrict x, int64_t count, T* __restrict y) {
  for (int64_t i = 0; i < count; ++i) y[i] = Round<T>(Load(x[i]) * Gate(Load(x[i])));
}

template <typename T>
void ActivationGradient(const T* __restrict x, const T* __restrict dy, int64_t count, T* __restrict dx) {
  for (int64_t i = 0; i < count; ++i) {
    // Outside [-10, 10] the gate is 0 or 1 in fp32. The inner slope may be infinite there, and 0 * infinity
    // is NaN.
    const float value = std::clamp(Load(x[i]), -10.0F, 10.0F);
    const float gate = Gate(value);
    const float inner_slope = kTwiceRootTwoOverPi * (1.0F + 3.0F * kCubic * value * value);
    dx[i] = Round<T>(Load(dy[i]) * (gate + value * gate * (1.0F - gate) * inner_slope));
  }
}

}  // namespace

absl::StatusOr<Tensors> Gelu::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  const Tensor& x = inputs[0];
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
