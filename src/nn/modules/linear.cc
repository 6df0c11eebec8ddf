#include "weft/nn/linear.h"

#include <utility>

#include "src/nn/modules/shapes.h"
#include "weft/nn/matmul.h"

namespace weft {

Linear::Linear(std::string name, int64_t in_features, int64_t out_features, Initializer initializer)
    : Linear(std::move(name), in_features, {{"weight", out_features}}, initializer) {}

Linear::Linear(std::string name, int64_t in_features, const std::vector<Output>& outputs,
               Initializer initializer)
    : Module(std::move(name)), in_features_(in_features) {
  for (const Output& output : outputs)
    AddParameter(output.parameter, {output.features, in_features}, initializer);
}

absl::StatusOr<Tensors> Linear::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  const Tensor& x = inputs[0];
  CheckLastDim(x, in_features_, name());
  const int64_t tokens = Rows(x);
  Tensors outputs;
  for (const auto& parameter : parameters()) {
    const TensorView& weight = UnshardedData(*parameter, x.dtype());
    const int64_t features = parameter->shape[0];
    WEFT_ASSIGN_OR_RETURN(Tensor y, NewOutput(x.dtype(), WithLastDim(x.shape(), features)));
    Matmul(tokens, features, in_features_, x.dtype(), {x.view().data, in_features_},
           {weight.data, in_features_, true}, 0.0F, y.dtype(), y.view().data, features);
    outputs.push_back(std::move(y));
  }
  if (invocation.is_saving()) invocation.Save(this, {x});
  return outputs;
}

absl::StatusOr<Tensors> Linear::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  const Tensor x = invocation.PopSaved(this)[0];
  const int64_t tokens = Rows(x);
  WEFT_ASSIGN_OR_RETURN(Tensor dx, NewInputGradient(x.dtype(), x.shape()));
  for (size_t i = 0; i < parameters().size(); ++i) {
    const Tensor& dy = output_gradients[i];
    Parameter& parameter = *parameters()[i];
    const int64_t features = parameter.shape[0];
    const TensorView& weight = UnshardedData(parameter, x.dtype());
    Matmul(tokens, in_features_, features, x.dtype(), {dy.view().data, features}, {weight.data, in_features_},
           i == 0 ? 0.0F : 1.0F, dx.dtype(), dx.view().data, in_features_);
    if (!parameter.requires_grad) continue;
    const TensorView& gradient = WritableGradient(parameter);
    Matmul(features, in_features_, tokens, x.dtype(), {dy.view().data, features, true},
           {x.view().data, in_features_}, parameter.BeginGradWrite(), gradient.dtype, gradient.data,
           in_features_);
  }
  return Tensors{std::move(dx)};
}

}  // namespace weft
