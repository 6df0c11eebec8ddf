#include "weft/nn/gated_unit.h"

#include <utility>

#include "src/nn/base/module_checks.h"
#include "src/nn/kernels/vector_math.h"
#include "src/nn/modules/gelu_tanh.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

constexpr int64_t kGrain = int64_t{8} * 1024;

struct Silu {
  static float Value(float x) { return x * Sigmoid(x); }
  static float Slope(float x) {
    const float sigmoid = Sigmoid(x);
    return sigmoid * (1.0F + x * (1.0F - sigmoid));
  }
};

template <typename F, typename T>
void Activate(const T* __restrict gate, const T* __restrict up, int64_t count, T* __restrict y) {
  for (int64_t i = 0; i < count; ++i) y[i] = Round<T>(F::Value(Load(gate[i])) * Load(up[i]));
}

// Overwrites gate and up with their gradients.
template <typename F, typename T>
void ActivationGradient(const T* __restrict dy, int64_t count, T* __restrict gate, T* __restrict up) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = Load(gate[i]);
    const float d = Load(dy[i]);
    gate[i] = Round<T>(d * Load(up[i]) * F::Slope(x));
    up[i] = Round<T>(d * F::Value(x));
  }
}

// Calls body(f, element) with a value of the activation's type and one of the dtype's type.
template <typename Body>
void WithTypes(GateActivation activation, DType dtype, const Body& body) {
  WithElementType(dtype, [&](auto element) {
    if (activation == GateActivation::kGeluTanh) {
      body(GeluTanh(), element);
    } else {
      body(Silu(), element);
    }
  });
}

}  // namespace

std::string_view Name(GateActivation activation) {
  return activation == GateActivation::kGeluTanh ? "gelu_pytorch_tanh" : "silu";
}

absl::StatusOr<Tensors> GatedUnit::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 2));
  const Tensor& gate = inputs[0];
  const Tensor& up = inputs[1];
  for (const Tensor& input : inputs) WEFT_RETURN_IF_ERROR(CheckActivation(*this, input));
  if (gate.shape() != up.shape() || gate.dtype() != up.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name(), ": gate ", ToString(gate.shape()), " of ", ToAbsl(Name(gate.dtype())), " and up ",
        ToString(up.shape()), " of ", ToAbsl(Name(up.dtype())), " must have one shape and dtype"));
  }
  Tensor y = Tensor::Empty(gate.dtype(), gate.shape());
  WithTypes(activation_, y.dtype(), [&](auto f, auto element) {
    using F = decltype(f);
    using T = decltype(element);
    ParallelFor(y.elements(), kGrain, [&](int64_t begin, int64_t end) {
      Activate<F>(gate.As<T>() + begin, up.As<T>() + begin, end - begin, y.As<T>() + begin);
    });
  });
  if (invocation.is_saving()) invocation.Save(this, {gate, up});
  return Tensors{std::move(y)};
}

absl::StatusOr<Tensors> GatedUnit::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, 1));
  Tensors saved = invocation.PopSaved(this);
  const Tensor& dy = output_gradients[0];
  WithTypes(activation_, dy.dtype(), [&](auto f, auto element) {
    using F = decltype(f);
    using T = decltype(element);
    ParallelFor(dy.elements(), kGrain, [&](int64_t begin, int64_t end) {
      ActivationGradient<F>(dy.As<T>() + begin, end - begin, saved[0].As<T>() + begin,
                            saved[1].As<T>() + begin);
    });
  });
  return saved;
}

}  // namespace weft
