// A small network of plain loops, with uneven shapes and parameters in blocks and in the root, for tests of
// sharding.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/nn/module.h"

namespace weft::testing {

// Values of any floating-point dtype, and back; gradients add or write as Parameter::BeginGradWrite says.
std::vector<float> ReadValues(const TensorView& view);
void WriteValues(const std::vector<float>& values, const TensorView& view);
void AddGradient(Parameter& parameter, std::vector<float> gradient);

// y = tanh(scale * (x W^T)): parameters "weight" [out, in] and "scale" [out].
class ToyLayer : public Module {
 public:
  ToyLayer(std::string name, int64_t in, int64_t out);
  // Ties the weight to another layer's.
  ToyLayer(std::string name, const ToyLayer& tied);

  const std::shared_ptr<Parameter>& weight() const { return parameters()[0]; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

// Multiplies its input by "gain" [in] and passes it through the layers in `order` (each once, in turn, at
// first).
class ToyNet : public Module {
 public:
  // Layers sizes[i] -> sizes[i + 1], named "layers.i".
  explicit ToyNet(const std::vector<int64_t>& sizes);

  std::vector<Module*> blocks() const { return {layers_.begin(), layers_.end()}; }
  ToyLayer& layer(size_t index) { return *layers_[index]; }
  // Which layers a pass calls; may repeat layers of equal in and out size, or leave some out.
  void SetOrder(std::vector<size_t> order) { order_ = std::move(order); }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  std::vector<ToyLayer*> layers_;
  std::vector<size_t> order_;
};

// Rows [begin, begin + count) of an endless data set of inputs.
Tensor ToyInputs(int64_t begin, int64_t count, int64_t features);
// The gradient of 1/2 sum (y - 1/2)^2 * scale.
Tensor ToyLossGradient(const Tensor& outputs, float scale);

}  // namespace weft::testing
