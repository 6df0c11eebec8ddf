// Toy network for tests of sharding: plain loops, uneven shapes, parameters in the blocks and in the root.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/nn/module.h"

namespace weft::testing {

// Conversions between values and a tensor of any floating-point dtype. AddGradient adds or writes, as
// Parameter::BeginGradWrite says; without a gradient view it does nothing.
std::vector<float> ReadValues(const TensorView& view);
void WriteValues(const std::vector<float>& values, const TensorView& view);
void AddGradient(Parameter& parameter, std::vector<float> gradient);

// Layer y = tanh(scale * (x W^T)) with parameters "weight" [out, in] and "scale" [out].
class ToyLayer : public Module {
 public:
  ToyLayer(std::string name, int64_t in, int64_t out);
  // Shares the weight of another layer.
  ToyLayer(std::string name, const ToyLayer& tied);

  const std::shared_ptr<Parameter>& weight() const { return parameters()[0]; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

// Network that multiplies its input by "gain" [in] and passes it through layers.
class ToyNet : public Module {
 public:
  // Layers sizes[i] -> sizes[i + 1], named "layers.i".
  explicit ToyNet(const std::vector<int64_t>& sizes);

  std::vector<Module*> blocks() const { return {layers_.begin(), layers_.end()}; }
  ToyLayer& layer(size_t index) { return *layers_[index]; }
  // Layers that a pass calls, in this order. Default: each once. A layer of equal input and output size may
  // be repeated or left out.
  void SetOrder(std::vector<size_t> order) { order_ = std::move(order); }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  std::vector<ToyLayer*> layers_;
  std::vector<size_t> order_;
};

// Rows [begin, begin + count) of an endless sequence of inputs, `[count, features]`.
Tensor ToyInputs(int64_t begin, int64_t count, int64_t features);
// Gradient of the loss scale / 2 * sum((y - 1/2)^2).
Tensor ToyLossGradient(const Tensor& outputs, float scale);

}  // namespace weft::testing
