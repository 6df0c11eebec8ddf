// RmsNorm and LayerNorm.
#include <utility>

#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/materialize.h"
#include "weft/nn/rms_norm.h"

namespace weft {
namespace {

TEST(RmsNorm, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    // Dims around the number of vector lanes, tokens around the part size of the weight's gradient sum. eps
    // is large, because the gradient of a row with a single value would otherwise be nearly zero.
    for (const auto& [tokens, dim] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {2, 32}, {5, 67}, {130, 3}}) {
      constexpr float kEps = 0.25F;
      RmsNorm norm("norm", dim, kEps);
      CheckGradients(
          norm, {TestTensor(options.dtype, {tokens, dim}, 1)},
          [](const Values& v) -> Values { return {oracle::RmsNorm(v[0], v[1], kEps)}; }, options);
    }
  }
}

TEST(RmsNorm, AddsAnOffsetToTheWeight) {
  constexpr float kEps = 0.25F;
  for (const GradientCheckOptions& options : kGradientDtypes) {
    RmsNorm norm("norm", 5, kEps, 1.0F);
    EXPECT_EQ(norm.parameters()[0]->initializer.mean, 0.0F);
    CheckGradients(
        norm, {TestTensor(options.dtype, {3, 5}, 1)},
        [](const Values& v) -> Values {
          Doubles gain = v[1];
          for (double& value : gain) value += 1.0;
          return {oracle::RmsNorm(v[0], gain, kEps)};
        },
        options);
  }
}

TEST(RmsNorm, RoundsBeforeItMultipliesWithTheWeight) {
  RmsNorm norm("norm", 1, 0.0F);
  const MaterializedParameters memory(norm, 0, DType::kBF16, DType::kF32);
  *norm.parameters()[0]->data.As<BF16>() = ToBF16(1.5F);
  const Tensor x = Tensor::Empty(DType::kBF16, {1, 1});
  *x.As<BF16>() = ToBF16(3.0F);
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, norm.Forward(invocation, {x}));
  EXPECT_EQ(ToFloat(*y[0].As<BF16>()), 1.5F);
}

TEST(LayerNorm, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    for (const auto& [tokens, dim] :
         {std::pair<int64_t, int64_t>{1, 2}, {3, 5}, {2, 32}, {5, 67}, {130, 3}}) {
      constexpr float kEps = 0.25F;
      LayerNorm norm("norm", dim, kEps);
      CheckGradients(
          norm, {TestTensor(options.dtype, {tokens, dim}, 1)},
          [](const Values& v) -> Values { return {oracle::LayerNorm(v[0], v[1], v[2], kEps)}; }, options);
    }
  }
}

TEST(LayerNorm, AcceptsZeroTokensAndRowsOfOneValue) {
  LayerNorm norm("norm", 1, 1e-6F);
  const MaterializedParameters memory(norm, 0, DType::kF32, DType::kF32);
  *norm.parameters()[1]->data.As<float>() = 3.0F;
  for (const int64_t tokens : {0, 2}) {
    Invocation invocation;
    ASSERT_OK_AND_ASSIGN(const Tensors y,
                         norm.Forward(invocation, {TestTensor(DType::kF32, {tokens, 1}, 1)}));
    for (int64_t i = 0; i < tokens; ++i) EXPECT_EQ(y[0].As<float>()[i], 3.0F);
    ASSERT_OK_AND_ASSIGN(const Tensors dx, norm.Backward(invocation, y));
    for (int64_t i = 0; i < tokens; ++i) EXPECT_EQ(dx[0].As<float>()[i], 0.0F);
  }
}

}  // namespace
}  // namespace weft
