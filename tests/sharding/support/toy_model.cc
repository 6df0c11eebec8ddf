#include "tests/sharding/support/toy_model.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

constexpr Initializer kScaleInitializer = {Initializer::Kind::kNormal, 1.0F, 0.1F};
constexpr Initializer kWeightInitializer = {Initializer::Kind::kNormal, 0.0F, 0.3F};

size_t Index(int64_t value) { return static_cast<size_t>(value); }

Tensor MakeTensor(const std::vector<float>& values, Shape shape) {
  Tensor tensor = Tensor::Empty(DType::kF32, std::move(shape));
  WriteValues(values, tensor.view());
  return tensor;
}

absl::Status CheckData(const Parameter& parameter) {
  if (parameter.data.data != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("parameter '", parameter.name, "' is used while it is sharded"));
}

}  // namespace

std::vector<float> ReadValues(const TensorView& view) {
  std::vector<float> values(Index(view.elements()));
  WEFT_CHECK(StridedCopy(view, TensorView::Contiguous(values.data(), DType::kF32, view.shape)).ok(), "read");
  return values;
}

void WriteValues(const std::vector<float>& values, const TensorView& view) {
  void* source = const_cast<float*>(values.data());
  WEFT_CHECK(StridedCopy(TensorView::Contiguous(source, DType::kF32, view.shape), view).ok(), "write");
}

void AddGradient(Parameter& parameter, std::vector<float> gradient) {
  if (parameter.grad.data == nullptr) return;
  if (parameter.BeginGradWrite() != 0.0F) {
    const std::vector<float> sum = ReadValues(parameter.grad);
    for (size_t i = 0; i < sum.size(); ++i) gradient[i] += sum[i];
  }
  WriteValues(gradient, parameter.grad);
}

ToyLayer::ToyLayer(std::string name, int64_t in, int64_t out) : Module(std::move(name)) {
  AddParameter("weight", {out, in}, kWeightInitializer);
  AddParameter("scale", {out}, kScaleInitializer);
}

ToyLayer::ToyLayer(std::string name, const ToyLayer& tied) : Module(std::move(name)) {
  ShareParameter(tied.weight());
  AddParameter("scale", {tied.weight()->shape[0]}, kScaleInitializer);
}

absl::StatusOr<Tensors> ToyLayer::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  for (const auto& parameter : parameters()) WEFT_RETURN_IF_ERROR(CheckData(*parameter));
  const int64_t out = weight()->shape[0];
  const int64_t in = weight()->shape[1];
  const int64_t rows = inputs[0].elements() / in;
  const std::vector<float> w = ReadValues(weight()->data);
  const std::vector<float> scale = ReadValues(parameters()[1]->data);
  const std::vector<float> x = ReadValues(inputs[0].view());
  std::vector<float> products(Index(rows * out));
  std::vector<float> outputs(products.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      float sum = 0.0F;
      for (int64_t i = 0; i < in; ++i) sum += x[Index(r * in + i)] * w[Index(o * in + i)];
      products[Index(r * out + o)] = sum;
      outputs[Index(r * out + o)] = std::tanh(scale[Index(o)] * sum);
    }
  }
  const Tensor y = MakeTensor(outputs, {rows, out});
  if (invocation.gradients()) invocation.Save(this, {inputs[0], MakeTensor(products, {rows, out}), y});
  return Tensors{y};
}

absl::StatusOr<Tensors> ToyLayer::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  for (const auto& parameter : parameters()) WEFT_RETURN_IF_ERROR(CheckData(*parameter));
  const Tensors saved = invocation.PopSaved(this);
  const int64_t out = weight()->shape[0];
  const int64_t in = weight()->shape[1];
  const int64_t rows = saved[0].elements() / in;
  const std::vector<float> x = ReadValues(saved[0].view());
  const auto* products = saved[1].As<float>();
  const auto* y = saved[2].As<float>();
  const auto* dy = output_gradients[0].As<float>();
  const std::vector<float> w = ReadValues(weight()->data);
  const std::vector<float> scale = ReadValues(parameters()[1]->data);
  std::vector<float> dw(w.size());
  std::vector<float> dscale(scale.size());
  std::vector<float> dx(Index(rows * in));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      const int64_t at = r * out + o;
      const float dt = dy[at] * (1.0F - y[at] * y[at]);
      dscale[Index(o)] += dt * products[at];
      for (int64_t i = 0; i < in; ++i) {
        dw[Index(o * in + i)] += dt * scale[Index(o)] * x[Index(r * in + i)];
        dx[Index(r * in + i)] += dt * scale[Index(o)] * w[Index(o * in + i)];
      }
    }
  }
  AddGradient(*parameters()[0], std::move(dw));
  AddGradient(*parameters()[1], std::move(dscale));
  return Tensors{MakeTensor(dx, {rows, in})};
}

ToyNet::ToyNet(const std::vector<int64_t>& sizes) : Module("net"), order_(sizes.size() - 1) {
  AddParameter("gain", {sizes[0]}, kScaleInitializer);
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    layers_.push_back(
        AddChild(std::make_unique<ToyLayer>(absl::StrCat("layers.", i), sizes[i], sizes[i + 1])));
  }
  std::iota(order_.begin(), order_.end(), size_t{0});
}

absl::StatusOr<Tensors> ToyNet::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckData(*parameters()[0]));
  const std::vector<float> gain = ReadValues(parameters()[0]->data);
  std::vector<float> values = ReadValues(inputs[0].view());
  for (size_t i = 0; i < values.size(); ++i) values[i] *= gain[i % gain.size()];
  if (invocation.gradients()) invocation.Save(this, {inputs[0]});
  Tensors tensors = {MakeTensor(values, inputs[0].shape())};
  for (const size_t layer : order_) {
    WEFT_ASSIGN_OR_RETURN(tensors, layers_[layer]->Forward(invocation, std::move(tensors)));
  }
  return tensors;
}

absl::StatusOr<Tensors> ToyNet::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  Tensors gradients = output_gradients;
  for (size_t i = order_.size(); i-- > 0;) {
    WEFT_ASSIGN_OR_RETURN(gradients, layers_[order_[i]]->Backward(invocation, std::move(gradients)));
  }
  const Tensors saved = invocation.PopSaved(this);
  const std::vector<float> x = ReadValues(saved[0].view());
  const std::vector<float> gain = ReadValues(parameters()[0]->data);
  std::vector<float> dx = ReadValues(gradients[0].view());
  std::vector<float> dgain(gain.size());
  for (size_t i = 0; i < x.size(); ++i) {
    dgain[i % gain.size()] += dx[i] * x[i];
    dx[i] *= gain[i % gain.size()];
  }
  AddGradient(*parameters()[0], std::move(dgain));
  return Tensors{MakeTensor(dx, saved[0].shape())};
}

Tensor ToyInputs(int64_t begin, int64_t count, int64_t features) {
  std::vector<float> values;
  for (int64_t i = begin * features; i < (begin + count) * features; ++i) {
    values.push_back(std::sin(static_cast<float>((i * 37) % 101)));
  }
  return MakeTensor(values, {count, features});
}

Tensor ToyLossGradient(const Tensor& outputs, float scale) {
  std::vector<float> values = ReadValues(outputs.view());
  for (float& value : values) value = (value - 0.5F) * scale;
  return MakeTensor(values, outputs.shape());
}

}  // namespace weft::testing
