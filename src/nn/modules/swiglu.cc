#include "weft/nn/swiglu.h"

#include <utility>

#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

constexpr int64_t kGrain = int64_t{8} * 1024;

template <typename T>
void Activate(const T* __restrict gate, const T* __restrict up, int64_t count, T* __restrict y) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = Load(gate[i]);
    y[i] = Round<T>(x * Sigmoid(x) * Load(up[i]));
  }
}

// Overwrites gate and up with their gradients.
template <typename T>
void ActivationGradient(const T* __restrict dy, int64_t count, T* __restrict gate, T* __restrict up) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = Load(gate[i]);
    const float sigmoid = Sigmoid(x);
    const float d = Load(dy[i]);
    const float silu_slope = sigmoid * (1.0F + x * (1.0F - sigmoid));
    gate[i] = Round<T>(d * Load(up[i]) * silu_slope);
    up[i] = Round<T>(d * (x * sigmoid));
  }
}

}  // namespace

absl::StatusOr<Tensors> SwiGlu::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  const Tensor& gate = inputs[0];
  const Tensor& up = inputs[1];
  WEFT_CHECK(gate.shape() == up.shape() && gate.dtype() == up.dtype(),
             "gate and up differ in shape or dtype");
  Tensor y = Tensor::Empty(gate.dtype(), gate.shape());
  WithElementType(y.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(y.elements(), kGrain, [&](int64_t begin, int64_t end) {
      Activate(gate.As<T>() + begin, up.As<T>() + begin, end - begin, y.As<T>() + begin);
    });
  });
  if (invocation.is_saving()) invocation.Save(this, {gate, up});
  return Tensors{std::move(y)};
}

absl::StatusOr<Tensors> SwiGlu::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  Tensors saved = invocation.PopSaved(this);
  const Tensor& dy = output_gradients[0];
  WithElementType(dy.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(dy.elements(), kGrain, [&](int64_t begin, int64_t end) {
      ActivationGradient(dy.As<T>() + begin, end - begin, saved[0].As<T>() + begin, saved[1].As<T>() + begin);
    });
  });
  return saved;
}

}  // namespace weft
