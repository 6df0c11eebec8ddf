#include "tests/nn/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/core/strided_copy.h"
#include "weft/nn/materialize.h"

namespace weft {
namespace {

double UnitValue(int64_t salt, int64_t index) {
  uint64_t x = static_cast<uint64_t>(salt) * 0x9E3779B97F4A7C15U + static_cast<uint64_t>(index) + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1p-52 - 1.0;
}

void FillTestValues(const TensorView& view, int64_t salt) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(UnitValue(salt, static_cast<int64_t>(i)));
  ConvertRun(values.data(), DType::kF32, view.data, view.dtype, view.elements());
}

Doubles ToDoubles(const TensorView& view) {
  Doubles values(static_cast<size_t>(view.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    switch (view.dtype) {
      case DType::kF32:
        values[i] = view.As<float>()[i];
        break;
      case DType::kBF16:
        values[i] = ToFloat(view.As<BF16>()[i]);
        break;
      case DType::kF16:
        values[i] = ToFloat(view.As<F16>()[i]);
        break;
      default:
        values[i] = view.As<int32_t>()[i];
    }
  }
  return values;
}

Tensor Copy(const Tensor& tensor) {
  Tensor copy = Tensor::Empty(tensor.dtype(), tensor.shape());
  std::memcpy(copy.view().data, tensor.view().data, tensor.bytes());
  return copy;
}

Tensors CopyAll(const Tensors& tensors) {
  Tensors copies;
  for (const Tensor& tensor : tensors) copies.push_back(Copy(tensor));
  return copies;
}

double Largest(const Doubles& values) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

void ExpectNear(const Doubles& actual, const Doubles& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const double allowed = tolerance * std::max(Largest(expected), 1e-3);
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], allowed) << what << " at " << i;
  }
}

// The scalar that is differentiated: the sum of the outputs, weighted with the output gradients.
double Objective(const std::vector<Doubles>& outputs, const std::vector<Doubles>& weights) {
  double sum = 0.0;
  for (size_t t = 0; t < outputs.size(); ++t) {
    for (size_t i = 0; i < outputs[t].size(); ++i) sum += outputs[t][i] * weights[t][i];
  }
  return sum;
}

// One forward and backward. Returns the gradients of the inputs.
Tensors RunOnce(Module& module, const Tensors& inputs, const Tensors& output_gradients, Tensors* outputs) {
  Invocation invocation;
  auto forward = module.Forward(invocation, CopyAll(inputs));
  EXPECT_OK(forward.status());
  if (!forward.ok()) return {};
  if (outputs != nullptr) *outputs = CopyAll(*forward);
  auto backward = module.Backward(invocation, CopyAll(output_gradients));
  EXPECT_OK(backward.status());
  EXPECT_TRUE(invocation.empty()) << "backward did not pop all saves";
  return backward.ok() ? *backward : Tensors{};
}

}  // namespace

void ExpectDifferences(const std::function<double(const Doubles&)>& function, const Doubles& point,
                       const Doubles& gradient, const DifferenceOptions& options, const std::string& what) {
  ASSERT_EQ(gradient.size(), point.size()) << what;
  const size_t count = point.size();
  const double allowed = options.tolerance * std::max(Largest(gradient), 1e-3);
  Doubles direction(count);
  const auto slope = [&] {
    const auto at = [&](double step) {
      Doubles moved = point;
      for (size_t i = 0; i < count; ++i) moved[i] += step * direction[i];
      return function(moved);
    };
    return (at(options.step) - at(-options.step)) / (2.0 * options.step);
  };
  // The stride has no factor in common with any dim, so that samples are at all positions of a row.
  size_t stride = std::max<size_t>(1, count / static_cast<size_t>(options.elements));
  while (std::gcd(stride, count) > 1) --stride;
  for (size_t i = 0; i < count; i += stride) {
    direction[i] = 1.0;
    ASSERT_NEAR(gradient[i], slope(), allowed) << what << " at " << i;
    direction[i] = 0.0;
  }
  double expected = 0.0;
  for (size_t i = 0; i < count; ++i) {
    direction[i] = UnitValue(991, static_cast<int64_t>(i));
    expected += gradient[i] * direction[i];
  }
  EXPECT_NEAR(expected, slope(), allowed * std::sqrt(static_cast<double>(count)))
      << what << " in a random direction";
}

Tensor TestTensor(DType dtype, Shape shape, int64_t salt) {
  Tensor tensor = Tensor::Empty(dtype, std::move(shape));
  FillTestValues(tensor.view(), salt);
  return tensor;
}

Tensor TestIds(Shape shape, int64_t vocab_size, int64_t salt) {
  Tensor tensor = Tensor::Empty(DType::kI32, std::move(shape));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.As<int32_t>()[i] =
        static_cast<int32_t>((UnitValue(salt, i) + 1.0) / 2.0 * static_cast<double>(vocab_size));
  }
  return tensor;
}

void CheckGradients(Module& module, const Tensors& inputs, const Oracle& oracle,
                    const GradientCheckOptions& options) {
  MaterializedParameters memory(module, /*seed=*/1, options.dtype, options.grad_dtype);
  const auto parameters = module.AllParameters();
  std::vector<Doubles> point;
  for (const Tensor& input : inputs) point.push_back(ToDoubles(input.view()));
  for (size_t i = 0; i < parameters.size(); ++i) {
    FillTestValues(parameters[i]->data, 100 + static_cast<int64_t>(i));
    point.push_back(ToDoubles(parameters[i]->data));
    // The first backward must not read the old gradient.
    const TensorView& grad = parameters[i]->grad;
    const std::vector<float> poison(static_cast<size_t>(grad.elements()),
                                    std::numeric_limits<float>::quiet_NaN());
    ConvertRun(poison.data(), DType::kF32, grad.data, grad.dtype, grad.elements());
  }

  const std::vector<Doubles> expected = oracle(point);
  Tensors output_gradients;
  {
    Invocation invocation(/*gradients=*/false);
    const auto outputs = module.Forward(invocation, CopyAll(inputs));
    ASSERT_OK(outputs);
    EXPECT_TRUE(invocation.empty()) << "forward without gradients saved a tensor";
    ASSERT_EQ(outputs->size(), expected.size());
    for (size_t i = 0; i < outputs->size(); ++i) {
      ExpectNear(ToDoubles((*outputs)[i].view()), expected[i], options.tolerance, "inference output");
      output_gradients.push_back(
          TestTensor((*outputs)[i].dtype(), (*outputs)[i].shape(), 50 + static_cast<int64_t>(i)));
    }
  }
  std::vector<Doubles> weights;
  for (const Tensor& gradient : output_gradients) weights.push_back(ToDoubles(gradient.view()));

  Tensors outputs;
  const Tensors input_gradients = RunOnce(module, inputs, output_gradients, &outputs);
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    ExpectNear(ToDoubles(outputs[i].view()), expected[i], options.tolerance, "output");
  }
  const auto expect_gradient = [&](size_t index, const Doubles& gradient, const std::string& what) {
    const auto objective = [&](const Doubles& moved) {
      std::vector<Doubles> at = point;
      at[index] = moved;
      return Objective(oracle(at), weights);
    };
    ExpectDifferences(objective, point[index], gradient,
                      {.tolerance = options.tolerance, .elements = options.elements}, what);
  };
  ASSERT_EQ(input_gradients.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dtype() == DType::kI32) {
      EXPECT_FALSE(input_gradients[i].defined());
      continue;
    }
    if (!input_gradients[i].defined()) continue;
    expect_gradient(i, ToDoubles(input_gradients[i].view()), absl::StrCat("input ", i));
  }
  std::vector<Doubles> gradients;
  for (size_t i = 0; i < parameters.size(); ++i) {
    gradients.push_back(ToDoubles(parameters[i]->grad));
    expect_gradient(inputs.size() + i, gradients[i], parameters[i]->name);
  }

  RunOnce(module, inputs, output_gradients, nullptr);
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (double& value : gradients[i]) value *= 2.0;
    ExpectNear(ToDoubles(parameters[i]->grad), gradients[i], 2.0 * options.tolerance,
               absl::StrCat("twice the gradient of ", parameters[i]->name));
    parameters[i]->requires_grad = false;
    parameters[i]->grad.data = nullptr;
  }
  RunOnce(module, inputs, output_gradients, nullptr);
}

}  // namespace weft
