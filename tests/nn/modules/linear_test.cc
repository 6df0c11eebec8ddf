// Linear layers with one or several weights, biases and adapters.
#include "weft/nn/linear.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/materialize.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST(Linear, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    for (const int64_t tokens : {1, 6}) {
      Linear linear("linear", 5, 7);
      CheckGradients(
          linear, {TestTensor(options.dtype, {tokens, 5}, 1)},
          [](const Values& v) -> Values { return {oracle::Linear(v[0], v[1], 5, 7)}; }, options);
    }
  }
}

TEST(Linear, SumsTheInputGradientsOfItsWeights) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Linear linear("attention", 6, {{"q.weight", 8}, {"k.weight", 2}, {"v.weight", 3}});
    CheckGradients(
        linear, {TestTensor(options.dtype, {2, 3, 6}, 1)},
        [](const Values& v) -> Values {
          return {oracle::Linear(v[0], v[1], 6, 8), oracle::Linear(v[0], v[2], 6, 2),
                  oracle::Linear(v[0], v[3], 6, 3)};
        },
        options);
  }
}

TEST(Linear, NamesEachWeight) {
  Linear one("mlp.down_proj", 2, 3);
  EXPECT_EQ(one.parameters()[0]->name, "mlp.down_proj.weight");
  Linear two("mlp", 2, {{"gate_proj.weight", 3}, {"up_proj.weight", 3}});
  EXPECT_EQ(two.parameters()[1]->name, "mlp.up_proj.weight");
}

TEST(Linear, AcceptsZeroTokens) {
  Linear linear("linear", 4, 3);
  const MaterializedParameters memory(linear, 0, DType::kF32, DType::kF32);
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, linear.Forward(invocation, {Tensor::Empty(DType::kF32, {0, 4})}));
  EXPECT_EQ(y[0].shape(), (Shape{0, 3}));
  ASSERT_OK(linear.Backward(invocation, y).status());
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(linear.parameters()[0]->grad.As<float>()[i], 0.0F);
}

TEST(Linear, AllocatesResultsWithItsResultAllocators) {
  Linear linear("linear", 3, {{"a.weight", 2}, {"b.weight", 4}});
  const MaterializedParameters memory(linear, 1, DType::kF32, DType::kF32);
  std::vector<void*> outputs;
  std::vector<void*> gradients;
  const auto record_in = [](std::vector<void*>& made) {
    return [&made](DType dtype, Shape shape) -> absl::StatusOr<Tensor> {
      Tensor tensor = Tensor::Empty(dtype, std::move(shape));
      made.push_back(tensor.view().data);
      return tensor;
    };
  };
  linear.SetResultAllocators({record_in(outputs), record_in(gradients)});
  Invocation invocation;
  const Tensor x = TestTensor(DType::kF32, {5, 3}, 1);
  ASSERT_OK_AND_ASSIGN(const Tensors y, linear.Forward(invocation, {x}));
  EXPECT_EQ(outputs, (std::vector<void*>{y[0].view().data, y[1].view().data}));
  ASSERT_OK_AND_ASSIGN(const Tensors dx, linear.Backward(invocation, y));
  EXPECT_EQ(gradients, std::vector<void*>{dx[0].view().data});

  linear.SetResultAllocators(
      {[](DType, const Shape&) -> absl::StatusOr<Tensor> { return absl::ResourceExhaustedError("full"); },
       {}});
  EXPECT_THAT(linear.Forward(invocation, {x}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
}

TEST(Linear, AddsABiasToTheOutputsThatHaveOne) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Linear linear(
        "attention", 5,
        std::vector<Linear::Output>{{"q.weight", 3, "q.bias"}, {"k.weight", 2}, {"v.weight", 4, "v.bias"}});
    std::vector<std::string> names;
    for (const auto& parameter : linear.parameters()) names.push_back(parameter->name);
    EXPECT_EQ(names,
              (std::vector<std::string>{"attention.q.weight", "attention.k.weight", "attention.v.weight",
                                        "attention.q.bias", "attention.v.bias"}));
    EXPECT_EQ(linear.parameters()[3]->initializer.kind, Initializer::Kind::kConstant);
    const auto with_bias = [](Doubles y, const Doubles& bias) {
      for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
      return y;
    };
    // More tokens than a part of the bias's gradient sum has.
    CheckGradients(
        linear, {TestTensor(options.dtype, {70, 5}, 1)},
        [&](const Values& v) -> Values {
          return {with_bias(oracle::Linear(v[0], v[1], 5, 3), v[4]), oracle::Linear(v[0], v[2], 5, 2),
                  with_bias(oracle::Linear(v[0], v[3], 5, 4), v[5])};
        },
        options);
  }
}

TEST(Linear, AddsTheScaledProductOfAnAdapter) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Linear linear("attention", 5,
                  std::vector<Linear::Output>{{"q.weight", 3, "q.bias"}, {"k.weight", 2}, {"v.weight", 4}});
    linear.AddAdapter(0, 2, 1.5F);
    linear.AddAdapter(2, 3, 0.25F);
    EXPECT_EQ(linear.parameters()[4]->name, "base_model.model.attention.q.lora_A.weight");
    EXPECT_EQ(linear.parameters()[7]->name, "base_model.model.attention.v.lora_B.weight");
    EXPECT_EQ(linear.parameters()[7]->shape, (Shape{4, 3}));
    const auto adapted = [](Doubles y, const Doubles& x, const Doubles& a, const Doubles& b, int64_t rank,
                            double scaling) {
      const auto features = static_cast<int64_t>(b.size()) / rank;
      const Doubles part = oracle::Linear(oracle::Linear(x, a, 5, rank), b, rank, features);
      for (size_t i = 0; i < y.size(); ++i) y[i] += scaling * part[i];
      return y;
    };
    CheckGradients(
        linear, {TestTensor(options.dtype, {7, 5}, 1)},
        [&](const Values& v) -> Values {
          Doubles q = oracle::Linear(v[0], v[1], 5, 3);
          for (size_t i = 0; i < q.size(); ++i) q[i] += v[4][i % 3];
          return {adapted(q, v[0], v[5], v[6], 2, 1.5), oracle::Linear(v[0], v[2], 5, 2),
                  adapted(oracle::Linear(v[0], v[3], 5, 4), v[0], v[7], v[8], 3, 0.25)};
        },
        options);
  }
}

TEST(Linear, KeepsNoInputForFrozenWeights) {
  Linear linear("linear", 3, 2);
  const Tensor x = TestTensor(DType::kF32, {4, 3}, 1);
  const auto readers_after_forward = [&] {
    const MaterializedParameters memory(linear, 1, DType::kF32, DType::kF32);
    Invocation invocation;
    const long before = x.storage().use_count();
    const Tensors y = linear.Forward(invocation, {x}).value();
    const long kept = x.storage().use_count() - before;
    EXPECT_OK(linear.Backward(invocation, y).status());
    return kept;
  };
  EXPECT_EQ(readers_after_forward(), 1);
  linear.parameters()[0]->requires_grad = false;
  EXPECT_EQ(readers_after_forward(), 0);
}

}  // namespace
}  // namespace weft
