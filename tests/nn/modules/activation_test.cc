// Activations: gated units and GELU.

#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/gated_unit.h"
#include "weft/nn/gelu.h"

namespace weft {
namespace {

TEST(GatedUnit, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    GatedUnit activation("activation");
    CheckGradients(
        activation, {TestTensor(options.dtype, {3, 37}, 1), TestTensor(options.dtype, {3, 37}, 2)},
        [](const Values& v) -> Values { return {oracle::SwiGlu(v[0], v[1])}; }, options);
  }
}

TEST(GatedUnit, HasTheSlopeOfTheTanhApproximation) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    GatedUnit activation("activation", GateActivation::kGeluTanh);
    CheckGradients(
        activation, {TestTensor(options.dtype, {3, 37}, 1), TestTensor(options.dtype, {3, 37}, 2)},
        [](const Values& v) -> Values {
          Doubles y = oracle::Gelu(v[0]);
          for (size_t i = 0; i < y.size(); ++i) y[i] *= v[1][i];
          return {y};
        },
        options);
  }
}

TEST(GatedUnit, StaysFiniteForHugeGates) {
  const Tensor gate = Tensor::Empty(DType::kF32, {4});
  const Tensor up = Tensor::Empty(DType::kF32, {4});
  const float gates[] = {-1e30F, -200.0F, 200.0F, 1e30F};
  for (int i = 0; i < 4; ++i) {
    gate.As<float>()[i] = gates[i];
    up.As<float>()[i] = 1.0F;
  }
  GatedUnit activation("activation");
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, activation.Forward(invocation, {gate, up}));
  EXPECT_NEAR(y[0].As<float>()[0], 0.0F, 1e-6F);
  EXPECT_NEAR(y[0].As<float>()[1], 0.0F, 1e-6F);
  EXPECT_EQ(y[0].As<float>()[2], 200.0F);
  EXPECT_EQ(y[0].As<float>()[3], 1e30F);
}

TEST(Gelu, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Gelu gelu("gelu");
    CheckGradients(
        gelu, {TestTensor(options.dtype, {3, 37}, 1)},
        [](const Values& v) -> Values { return {oracle::Gelu(v[0])}; }, options);
  }
}

TEST(Gelu, StaysFiniteForHugeInputs) {
  const Tensor x = Tensor::Empty(DType::kF32, {2});
  const Tensor dy = Tensor::Empty(DType::kF32, {2});
  x.As<float>()[0] = -1e30F;
  x.As<float>()[1] = 1e30F;
  dy.As<float>()[0] = dy.As<float>()[1] = 1.0F;
  Gelu gelu("gelu");
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, gelu.Forward(invocation, {x}));
  ASSERT_OK_AND_ASSIGN(const Tensors dx, gelu.Backward(invocation, {dy}));
  EXPECT_NEAR(y[0].As<float>()[0], 0.0F, 1e-6F);
  EXPECT_EQ(y[0].As<float>()[1], 1e30F);
  EXPECT_NEAR(dx[0].As<float>()[0], 0.0F, 1e-6F);
  EXPECT_EQ(dx[0].As<float>()[1], 1.0F);
}

}  // namespace
}  // namespace weft
