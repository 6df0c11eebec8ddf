#include "weft/nn/linear.h"

#include <cstring>
#include <utility>

#include "src/nn/base/gradient_sum.h"
#include "src/nn/base/module_checks.h"
#include "src/nn/base/shapes.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

// Copies a row to all rows of a contiguous tensor.
void FillRows(const TensorView& row, const Tensor& rows) {
  const int64_t features = rows.shape().back();
  const size_t row_bytes = static_cast<size_t>(BytesOf(features, rows.dtype()));
  ParallelFor(Rows(rows), RowGrain(features), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(static_cast<char*>(rows.view().data) + static_cast<size_t>(i) * row_bytes, row.data,
                  row_bytes);
    }
  });
}

void AddBiasGradient(const Tensor& dy, Parameter& bias) {
  const int64_t features = bias.elements();
  WithElementType(dy.dtype(), [&](auto element) {
    using T = decltype(element);
    SumOverTokens(Rows(dy), kTokensPerPart, bias, [&](int64_t begin, int64_t end, float* __restrict sum) {
      for (int64_t token = begin; token < end; ++token) {
        const T* row = dy.As<T>() + token * features;
        for (int64_t i = 0; i < features; ++i) sum[i] += Load(row[i]);
      }
    });
  });
}

}  // namespace

Linear::Linear(std::string name, int64_t in_features, int64_t out_features, Initializer initializer)
    : Linear(std::move(name), in_features, {{"weight", out_features}}, initializer) {}

Linear::Linear(std::string name, int64_t in_features, const std::vector<Output>& outputs,
               Initializer initializer)
    : Module(std::move(name)), in_features_(in_features) {
  for (const Output& output : outputs)
    AddParameter(output.parameter, {output.features, in_features}, initializer);
  for (const Output& output : outputs) {
    biases_.push_back(output.bias.empty() ? nullptr
                                          : AddParameter(output.bias, {output.features},
                                                         {Initializer::Kind::kConstant, 0.0F, 0.0F}));
  }
  adapters_.resize(outputs.size());
}

bool Linear::NeedsInput() const {
  for (size_t i = 0; i < biases_.size(); ++i) {
    if (parameters()[i]->requires_grad || (adapters_[i] && adapters_[i]->a->requires_grad)) return true;
  }
  return false;
}

absl::StatusOr<Tensor> Linear::ForwardOf(const Tensor& x, size_t output) const {
  const Parameter& parameter = *parameters()[output];
  const TensorView& weight = UnshardedData(parameter, x.dtype());
  const int64_t features = parameter.shape[0];
  WEFT_ASSIGN_OR_RETURN(Tensor y, NewOutput(x.dtype(), WithLastDim(x.shape(), features)));
  const Parameter* bias = biases_[output];
  if (bias != nullptr) FillRows(UnshardedData(*bias, x.dtype()), y);
  Matmul(Rows(x), features, in_features_, x.dtype(), {x.view().data, in_features_},
         {weight.data, in_features_, true}, bias == nullptr ? 0.0F : 1.0F, y.dtype(), y.view().data,
         features);
  return y;
}

absl::StatusOr<Tensors> Linear::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckForward(*this, inputs, in_features_));
  const Tensor& x = inputs[0];
  Tensors outputs;
  Tensors saved = {NeedsInput() ? x : Tensor()};
  for (size_t output = 0; output < biases_.size(); ++output) {
    WEFT_ASSIGN_OR_RETURN(Tensor y, ForwardOf(x, output));
    if (const std::optional<Adapter>& adapter = adapters_[output]) {
      WEFT_ASSIGN_OR_RETURN(const Tensor input, AdapterInput(invocation, *adapter, x));
      saved.push_back(AddAdapterOutput(*adapter, input, y));
    }
    outputs.push_back(std::move(y));
  }
  if (invocation.is_saving()) invocation.Save(this, std::move(saved));
  return outputs;
}

absl::StatusOr<Tensors> Linear::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  const DType dtype = output_gradients[0].dtype();
  WEFT_RETURN_IF_ERROR(CheckBackward(*this, output_gradients, outputs(), dtype));
  const int64_t tokens = Rows(output_gradients[0]);
  WEFT_ASSIGN_OR_RETURN(Tensor dx,
                        NewInputGradient(dtype, WithLastDim(output_gradients[0].shape(), in_features_)));
  const Tensors saved = invocation.PopSaved(this);
  const Tensor& x = saved[0];  // Undefined if nothing below reads it.
  size_t next_saved = 1;
  for (size_t i = 0; i < biases_.size(); ++i) {
    const Tensor& dy = output_gradients[i];
    Parameter& parameter = *parameters()[i];
    const int64_t features = parameter.shape[0];
    const TensorView& weight = UnshardedData(parameter, dtype);
    Matmul(tokens, in_features_, features, dtype, {dy.view().data, features}, {weight.data, in_features_},
           i == 0 ? 0.0F : 1.0F, dtype, dx.view().data, in_features_);
    if (const std::optional<Adapter>& adapter = adapters_[i]) {
      WEFT_RETURN_IF_ERROR(AdapterBackward(invocation, *adapter, x, saved[next_saved++], dy, dx));
    }
    if (biases_[i] != nullptr && biases_[i]->requires_grad) AddBiasGradient(dy, *biases_[i]);
    if (!parameter.requires_grad) continue;
    const TensorView& gradient = WritableGradient(parameter);
    Matmul(features, in_features_, tokens, dtype, {dy.view().data, features, true},
           {x.view().data, in_features_}, parameter.BeginGradWrite(), gradient.dtype, gradient.data,
           in_features_);
  }
  return Tensors{std::move(dx)};
}

}  // namespace weft
