#include "weft/nn/rms_norm.h"

#include <cmath>
#include <utility>

#include "src/nn/base/gradient_sum.h"
#include "src/nn/base/module_checks.h"
#include "src/nn/base/shapes.h"
#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// The gain of column i is offset + weight. Without an offset the normalized row is rounded before the product
// with the weight, and with one only the product is.
template <typename T>
struct Gain {
  const T* weight;
  float offset;

  float Of(int64_t i) const { return offset + Load(weight[i]); }
  float Rounded(float normalized) const { return offset == 0.0F ? Load(Round<T>(normalized)) : normalized; }
};

template <typename T>
float NormalizeRow(const T* x, Gain<T> gain, int64_t dim, float eps, T* y) {
  const float squares = LaneSum(dim, [x](int64_t i) { return Load(x[i]) * Load(x[i]); });
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(dim) + eps);
  for (int64_t i = 0; i < dim; ++i) y[i] = Round<T>(gain.Of(i) * gain.Rounded(Load(x[i]) * scale));
  return scale;
}

// dx = scale * (g - n * mean(g * n)), where n = x * scale is the normalized row and g = dy * gain.
template <typename T>
void InputGradientOfRow(const T* x, Gain<T> gain, const T* dy, float scale, int64_t dim, T* __restrict dx) {
  const float product =
      LaneSum(dim, [=](int64_t i) { return Load(dy[i]) * gain.Of(i) * (Load(x[i]) * scale); });
  const float mean = product / static_cast<float>(dim);
  for (int64_t i = 0; i < dim; ++i) {
    dx[i] = Round<T>(scale * (Load(dy[i]) * gain.Of(i) - Load(x[i]) * scale * mean));
  }
}

template <typename T>
void AddWeightGradient(const T* x, Gain<T> gain, const T* dy, float scale, int64_t dim,
                       float* __restrict sum) {
  for (int64_t i = 0; i < dim; ++i) sum[i] += Load(dy[i]) * gain.Rounded(Load(x[i]) * scale);
}

}  // namespace

RmsNorm::RmsNorm(std::string name, int64_t dim, float eps, float offset)
    : Module(std::move(name)), dim_(dim), eps_(eps), offset_(offset) {
  AddParameter("weight", {dim}, {Initializer::Kind::kConstant, 1.0F - offset, 0.0F});
}

absl::StatusOr<Tensors> RmsNorm::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckForward(*this, inputs, dim_));
  const Tensor& x = inputs[0];
  const int64_t tokens = Rows(x);
  const TensorView& weight = UnshardedData(*parameters()[0], x.dtype());
  WEFT_ASSIGN_OR_RETURN(Tensor y, NewOutput(x.dtype(), x.shape()));
  const Tensor scales = Tensor::Empty(DType::kF32, {tokens});
  WithElementType(x.dtype(), [&](auto element) {
    using T = decltype(element);
    const Gain<T> gain = {weight.As<T>(), offset_};
    ParallelFor(tokens, RowGrain(dim_), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        scales.As<float>()[token] =
            NormalizeRow(x.As<T>() + token * dim_, gain, dim_, eps_, y.As<T>() + token * dim_);
      }
    });
  });
  if (invocation.is_saving()) invocation.Save(this, {x, scales});
  return Tensors{std::move(y)};
}

absl::StatusOr<Tensors> RmsNorm::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  const Tensor& dy = output_gradients[0];
  WEFT_RETURN_IF_ERROR(CheckBackward(*this, output_gradients, 1, dy.dtype()));
  const Tensors saved = invocation.PopSaved(this);
  const Tensor& x = saved[0];
  const auto* scales = saved[1].As<float>();
  const int64_t tokens = Rows(x);
  Parameter& parameter = *parameters()[0];
  const TensorView& weight = UnshardedData(parameter, x.dtype());
  Tensor dx = Tensor::Empty(x.dtype(), x.shape());
  WithElementType(x.dtype(), [&](auto element) {
    using T = decltype(element);
    const Gain<T> gain = {weight.As<T>(), offset_};
    const auto add_rows = [&](int64_t begin, int64_t end, float* weight_gradient) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t at = token * dim_;
        InputGradientOfRow(x.As<T>() + at, gain, dy.As<T>() + at, scales[token], dim_, dx.As<T>() + at);
        if (weight_gradient != nullptr) {
          AddWeightGradient(x.As<T>() + at, gain, dy.As<T>() + at, scales[token], dim_, weight_gradient);
        }
      }
    };
    if (parameter.requires_grad) {
      SumOverTokens(tokens, kTokensPerPart, parameter, add_rows);
    } else {
      ParallelFor(tokens, RowGrain(dim_), [&](int64_t begin, int64_t end) { add_rows(begin, end, nullptr); });
    }
  });
  return Tensors{std::move(dx)};
}

}  // namespace weft
