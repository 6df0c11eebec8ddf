// Layers composed of other layers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/linear.h"
#include "weft/nn/mlp.h"
#include "weft/nn/sequential.h"

namespace weft {
namespace {

TEST(Mlp, PassesItsInputsThroughAllItsLayers) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Mlp mlp("mlp", 5, 7);
    EXPECT_EQ(mlp.AllParameters()[1]->name, "mlp.down.weight");
    CheckGradients(
        mlp, {TestTensor(options.dtype, {4, 5}, 1)},
        [](const Values& v) -> Values {
          return {oracle::Linear(oracle::Gelu(oracle::Linear(v[0], v[1], 5, 7)), v[2], 7, 5)};
        },
        options);
  }
}

TEST(Residual, AddsItsInput) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Residual residual("block");
    residual.Add<Linear>("linear", 5, 5);
    CheckGradients(
        residual, {TestTensor(options.dtype, {4, 5}, 1)},
        [](const Values& v) -> Values {
          Doubles y = oracle::Linear(v[0], v[1], 5, 5);
          for (size_t i = 0; i < y.size(); ++i) y[i] += v[0][i];
          return {y};
        },
        options);
  }
}

TEST(Residual, OverwritesNeitherItsInputNorItsChildrensOutput) {
  Residual identity("identity");  // f(x) is x itself.
  const Tensor x = TestTensor(DType::kF32, {4}, 1);
  const float first = x.As<float>()[0];
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, identity.Forward(invocation, {x}));
  EXPECT_EQ(x.As<float>()[0], first);
  EXPECT_EQ(y[0].As<float>()[0], 2 * first);
}

}  // namespace
}  // namespace weft
