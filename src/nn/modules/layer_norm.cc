#include "weft/nn/layer_norm.h"

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

// A row is normalized to (x - mean) * scale.
struct RowStatistics {
  float mean, scale;
};

template <typename T>
RowStatistics StatisticsOfRow(const T* x, int64_t dim, float eps) {
  const auto count = static_cast<float>(dim);
  const float mean = LaneSum(dim, [x](int64_t i) { return Load(x[i]); }) / count;
  const float squares =
      LaneSum(dim, [x, mean](int64_t i) { return (Load(x[i]) - mean) * (Load(x[i]) - mean); });
  return {mean, 1.0F / std::sqrt(squares / count + eps)};
}

template <typename T>
void NormalizeRow(const T* x, const T* weight, const T* bias, RowStatistics row, int64_t dim, T* y) {
  for (int64_t i = 0; i < dim; ++i) {
    y[i] = Round<T>(Load(weight[i]) * ((Load(x[i]) - row.mean) * row.scale) + Load(bias[i]));
  }
}

// dx = scale * (g - mean(g) - n * mean(g * n)), where n is the normalized row and g = dy * weight.
template <typename T>
void InputGradientOfRow(const T* x, const T* weight, const T* dy, RowStatistics row, int64_t dim,
                        T* __restrict dx) {
  const auto count = static_cast<float>(dim);
  const auto gradient = [=](int64_t i) { return Load(dy[i]) * Load(weight[i]); };
  const auto normalized = [=](int64_t i) { return (Load(x[i]) - row.mean) * row.scale; };
  const float mean = LaneSum(dim, gradient) / count;
  const float product = LaneSum(dim, [&](int64_t i) { return gradient(i) * normalized(i); }) / count;
  for (int64_t i = 0; i < dim; ++i) {
    dx[i] = Round<T>(row.scale * (gradient(i) - mean - normalized(i) * product));
  }
}

template <typename T>
void AddWeightGradient(const T* x, const T* dy, RowStatistics row, int64_t dim, float* __restrict sum) {
  for (int64_t i = 0; i < dim; ++i) sum[i] += Load(dy[i]) * ((Load(x[i]) - row.mean) * row.scale);
}

template <typename T>
void AddRow(const T* dy, int64_t dim, float* __restrict sum) {
  for (int64_t i = 0; i < dim; ++i) sum[i] += Load(dy[i]);
}

RowStatistics StatisticsAt(const Tensor& statistics, int64_t token) {
  return {statistics.As<float>()[token], statistics.As<float>()[statistics.dim(1) + token]};
}

}  // namespace

LayerNorm::LayerNorm(std::string name, int64_t dim, float eps)
    : Module(std::move(name)), dim_(dim), eps_(eps) {
  AddParameter("weight", {dim}, {Initializer::Kind::kConstant, 1.0F, 0.0F});
  AddParameter("bias", {dim}, {Initializer::Kind::kConstant, 0.0F, 0.0F});
}

absl::StatusOr<Tensors> LayerNorm::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckForward(*this, inputs, dim_));
  const Tensor& x = inputs[0];
  const int64_t tokens = Rows(x);
  const TensorView& weight = UnshardedData(*parameters()[0], x.dtype());
  const TensorView& bias = UnshardedData(*parameters()[1], x.dtype());
  WEFT_ASSIGN_OR_RETURN(Tensor y, NewOutput(x.dtype(), x.shape()));
  const Tensor statistics = Tensor::Empty(DType::kF32, {2, tokens});
  WithElementType(x.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(tokens, RowGrain(dim_), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const T* row = x.As<T>() + token * dim_;
        const RowStatistics of_row = StatisticsOfRow(row, dim_, eps_);
        NormalizeRow(row, weight.As<T>(), bias.As<T>(), of_row, dim_, y.As<T>() + token * dim_);
        statistics.As<float>()[token] = of_row.mean;
        statistics.As<float>()[tokens + token] = of_row.scale;
      }
    });
  });
  if (invocation.is_saving()) invocation.Save(this, {x, statistics});
  return Tensors{std::move(y)};
}

absl::StatusOr<Tensors> LayerNorm::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  const Tensor& dy = output_gradients[0];
  WEFT_RETURN_IF_ERROR(CheckBackward(*this, output_gradients, 1, dy.dtype()));
  const Tensors saved = invocation.PopSaved(this);
  const Tensor& x = saved[0];
  WithElementType(x.dtype(), [&](auto element) {
    using T = decltype(element);
    if (Parameter& weight = *parameters()[0]; weight.requires_grad) {
      SumOverTokens(Rows(x), kTokensPerPart, weight, [&](int64_t begin, int64_t end, float* sum) {
        for (int64_t token = begin; token < end; ++token) {
          AddWeightGradient(x.As<T>() + token * dim_, dy.As<T>() + token * dim_,
                            StatisticsAt(saved[1], token), dim_, sum);
        }
      });
    }
    if (Parameter& bias = *parameters()[1]; bias.requires_grad) {
      SumOverTokens(Rows(x), kTokensPerPart, bias, [&](int64_t begin, int64_t end, float* sum) {
        for (int64_t token = begin; token < end; ++token) AddRow(dy.As<T>() + token * dim_, dim_, sum);
      });
    }
  });
  return Tensors{InputGradient(x, dy, saved[1])};
}

Tensor LayerNorm::InputGradient(const Tensor& x, const Tensor& dy, const Tensor& statistics) const {
  const TensorView& weight = UnshardedData(*parameters()[0], x.dtype());
  Tensor dx = Tensor::Empty(x.dtype(), x.shape());
  WithElementType(x.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(Rows(x), RowGrain(dim_), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t at = token * dim_;
        InputGradientOfRow(x.As<T>() + at, weight.As<T>(), dy.As<T>() + at, StatisticsAt(statistics, token),
                           dim_, dx.As<T>() + at);
      }
    });
  });
  return dx;
}

}  // namespace weft
