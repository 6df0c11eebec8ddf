// Low-rank adapters of linear layers.
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>

#include "src/nn/base/dropout_mask.h"
#include "src/nn/base/shapes.h"
#include "src/nn/products/element.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/nn/linear.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

constexpr absl::string_view kPrefix = "base_model.model.";  // All names in PEFT begin so.
constexpr absl::string_view kWeight = ".weight";
constexpr absl::string_view kA = ".lora_A.weight";
constexpr absl::string_view kB = ".lora_B.weight";

// factor * A B in the dtype of both factors, rounded once.
Tensor ScaledProduct(int64_t m, int64_t n, int64_t k, DType dtype, Factor a, Factor b, float factor) {
  Tensor product = Tensor::Empty(DType::kF32, {m, n});
  Matmul(m, n, k, dtype, a, b, 0.0F, DType::kF32, product.view().data, n);
  float* values = product.As<float>();
  ParallelFor(m, RowGrain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * n; i < end * n; ++i) values[i] *= factor;
  });
  if (dtype == DType::kF32) return product;
  Tensor rounded = Tensor::Empty(dtype, {m, n});
  ConvertRun(values, DType::kF32, rounded.view().data, dtype, m * n);
  return rounded;
}

// Adds fp32 values to a tensor of as many elements.
void AddTo(const Tensor& sum, const Tensor& values) {
  const float* added = values.As<float>();
  WithElementType(sum.dtype(), [&](auto element) {
    using T = decltype(element);
    T* to = sum.As<T>();
    ParallelFor(Rows(values), RowGrain(values.shape().back()), [&](int64_t begin, int64_t end) {
      const int64_t columns = values.shape().back();
      for (int64_t i = begin * columns; i < end * columns; ++i) to[i] = Round<T>(Load(to[i]) + added[i]);
    });
  });
}

std::shared_ptr<Parameter> MakeParameter(std::string name, Shape shape, Initializer initializer) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = std::move(name);
  parameter->shape = std::move(shape);
  parameter->initializer = initializer;
  return parameter;
}

// One output of a linear layer.
struct Target {
  Linear* linear;
  size_t output;
  absl::string_view name;  // As in transformers: "model.layers.0.self_attn.q_proj".
};

std::vector<Target> LinearOutputs(Module& model) {
  std::vector<Target> targets;
  for (Module* module : model.Descendants()) {
    auto* linear = dynamic_cast<Linear*>(module);
    for (size_t output = 0; linear != nullptr && output < linear->outputs(); ++output) {
      const absl::string_view weight = linear->parameters()[output]->name;
      targets.push_back({linear, output, absl::StripSuffix(weight, kWeight)});
    }
  }
  return targets;
}

absl::string_view LastPart(absl::string_view name) { return name.substr(name.rfind('.') + 1); }

bool Names(absl::string_view target, absl::string_view layer) {
  return layer == target || absl::EndsWith(layer, absl::StrCat(".", target));
}

absl::Status CheckOptions(const LoraOptions& options) {
  if (options.rank < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rank of adapters is ", options.rank, ", but must be at least 1"));
  }
  if (!(options.alpha > 0) || !std::isfinite(options.scaling())) {
    return absl::InvalidArgumentError(
        absl::StrCat("alpha of adapters is ", options.alpha, ", but must be a positive number"));
  }
  if (!(options.dropout >= 0 && static_cast<float>(options.dropout) < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the dropout of adapters is ", options.dropout, ", but must be at least 0 and below 1"));
  }
  return options.targets.empty() ? absl::InvalidArgumentError("no linear layer is named for adapters")
                                 : absl::OkStatus();
}

}  // namespace

void Linear::AddAdapter(size_t output, int64_t rank, float scaling, float dropout) {
  WEFT_CHECK(!has_adapter(output), "an output of a linear layer takes one adapter");
  const Parameter& weight = *parameters()[output];
  LoraNames names = LoraNamesOf(weight.name);
  std::string mask = absl::StrCat(absl::StripSuffix(names.a, kA), ".lora_dropout");
  // Kaiming-uniform with the slope sqrt(5): variance 1 / (3 in_features).
  const float stddev = 1.0F / std::sqrt(3.0F * static_cast<float>(in_features_));
  Parameter* a = ShareParameter(
      MakeParameter(std::move(names.a), {rank, in_features_}, {Initializer::Kind::kUniform, 0.0F, stddev}));
  Parameter* b = ShareParameter(
      MakeParameter(std::move(names.b), {weight.shape[0], rank}, {Initializer::Kind::kConstant, 0.0F, 0.0F}));
  adapters_[output] = Adapter{a, b, scaling, dropout, std::move(mask)};
}

absl::StatusOr<Tensor> Linear::AdapterInput(const Invocation& invocation, const Adapter& adapter,
                                            const Tensor& x) {
  if (!DropsElements(invocation, adapter.dropout)) return x;
  return DropElements(invocation, adapter.mask, adapter.dropout, x);
}

Tensor Linear::AddAdapterOutput(const Adapter& adapter, const Tensor& x, const Tensor& y) const {
  const int64_t rank = adapter.a->shape[0];
  const int64_t features = adapter.b->shape[0];
  const TensorView& a = UnshardedData(*adapter.a, x.dtype());
  const TensorView& b = UnshardedData(*adapter.b, x.dtype());
  Tensor low = ScaledProduct(Rows(x), rank, in_features_, x.dtype(), {x.view().data, in_features_},
                             {a.data, in_features_, true}, adapter.scaling);
  Matmul(Rows(x), features, rank, x.dtype(), {low.view().data, rank}, {b.data, rank, true}, 1.0F, y.dtype(),
         y.view().data, features);
  return low;
}

absl::Status Linear::AdapterBackward(const Invocation& invocation, const Adapter& adapter, const Tensor& x,
                                     const Tensor& low, const Tensor& dy, const Tensor& dx) const {
  const int64_t tokens = Rows(dy);
  const int64_t rank = adapter.a->shape[0];
  const int64_t features = adapter.b->shape[0];
  const DType dtype = dy.dtype();
  const TensorView& a = UnshardedData(*adapter.a, dtype);
  const TensorView& b = UnshardedData(*adapter.b, dtype);
  const Tensor d_low = ScaledProduct(tokens, rank, features, dtype, {dy.view().data, features},
                                     {b.data, rank}, adapter.scaling);
  const Factor d_low_rows{d_low.view().data, rank};
  const Factor a_rows{a.data, in_features_};
  Tensor input = x;  // Of the adapter.
  if (DropsElements(invocation, adapter.dropout)) {
    const Tensor d_input = Tensor::Empty(DType::kF32, dx.shape());
    Matmul(tokens, in_features_, rank, dtype, d_low_rows, a_rows, 0.0F, DType::kF32, d_input.view().data,
           in_features_);
    Tensors masked = {d_input};
    if (adapter.a->requires_grad) masked.push_back(x);
    WEFT_ASSIGN_OR_RETURN(const Tensors kept,
                          DropElements(invocation, adapter.mask, adapter.dropout, masked));
    AddTo(dx, kept.front());
    input = kept.back();
  } else {
    Matmul(tokens, in_features_, rank, dtype, d_low_rows, a_rows, 1.0F, dtype, dx.view().data, in_features_);
  }
  if (adapter.b->requires_grad) {
    const TensorView& gradient = WritableGradient(*adapter.b);
    Matmul(features, rank, tokens, dtype, {dy.view().data, features, true}, {low.view().data, rank},
           adapter.b->BeginGradWrite(), gradient.dtype, gradient.data, rank);
  }
  if (adapter.a->requires_grad) {
    const TensorView& gradient = WritableGradient(*adapter.a);
    Matmul(rank, in_features_, tokens, dtype, {d_low.view().data, rank, true},
           {input.view().data, in_features_}, adapter.a->BeginGradWrite(), gradient.dtype, gradient.data,
           in_features_);
  }
  return absl::OkStatus();
}

absl::StatusOr<LoraOptions> AddLora(Module& model, LoraOptions options) {
  WEFT_RETURN_IF_ERROR(CheckOptions(options));
  const std::vector<Target> outputs = LinearOutputs(model);
  std::set<std::string> names;
  for (const Target& output : outputs) {
    names.emplace(LastPart(output.name));
    if (!output.linear->has_adapter(output.output)) continue;
    return absl::FailedPreconditionError(absl::StrCat("'", output.name, "' has an adapter already"));
  }
  if (options.targets == std::vector<std::string>{LoraOptions::kAllLinear}) {
    options.targets.assign(names.begin(), names.end());
  }
  std::vector<bool> adapted(outputs.size());
  for (const std::string& target : options.targets) {
    bool found = false;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!Names(target, outputs[i].name)) continue;
      adapted[i] = found = true;
    }
    if (found) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "'", target, "' is no linear layer of this model; there are ", absl::StrJoin(names, ", ")));
  }
  for (const std::shared_ptr<Parameter>& parameter : model.AllParameters()) parameter->requires_grad = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!adapted[i]) continue;
    outputs[i].linear->AddAdapter(outputs[i].output, options.rank, options.scaling(),
                                  static_cast<float>(options.dropout));
  }
  return options;
}

LoraNames LoraNamesOf(std::string_view weight) {
  const std::string layer = absl::StrCat(kPrefix, absl::StripSuffix(ToAbsl(weight), kWeight));
  return {absl::StrCat(layer, kA), absl::StrCat(layer, kB)};
}

bool IsLoraParameter(const Parameter& parameter) {
  return absl::StartsWith(parameter.name, kPrefix) &&
         (absl::EndsWith(parameter.name, kA) || absl::EndsWith(parameter.name, kB));
}

}  // namespace weft
