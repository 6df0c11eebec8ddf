// Layers that only move elements: heads, transposed dims.
#include "weft/nn/heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/transpose.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST(Transpose, SwapsTheLastTwoDims) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Transpose transpose("swap");
    CheckGradients(
        transpose, {TestTensor(options.dtype, {2, 3, 5}, 1)},
        [](const Values& v) -> Values {
          Doubles y;
          for (size_t i = 0; i < 30; ++i) y.push_back(v[0][i / 15 * 15 + i % 3 * 5 + i % 15 / 3]);
          return {y};
        },
        options);
  }
}

TEST(Heads, SplitColumnsIntoWindowsAndCopyTheirGradientsBack) {
  SplitHeads split("split", 3, 2);
  const Tensor x = TestTensor(DType::kF32, {2, 3, 18}, 1);
  Invocation pass;
  ASSERT_OK_AND_ASSIGN(const Tensors parts, split.Forward(pass, {x}));
  ASSERT_EQ(parts.size(), 3U);
  Tensors gradients;
  for (size_t part = 0; part < 3; ++part) {
    EXPECT_EQ(parts[part].shape(), (Shape{2, 3, 2, 3}));
    gradients.push_back(parts[part].Copy());
    for (int64_t i = 0; i < 36; ++i) {
      EXPECT_EQ(gradients[part].As<float>()[i],
                x.As<float>()[i / 6 * 18 + static_cast<int64_t>(part) * 6 + i % 6]);
    }
  }
  ASSERT_OK_AND_ASSIGN(const Tensors dx, split.Backward(pass, gradients));
  EXPECT_EQ(dx[0].shape(), x.shape());
  for (int64_t i = 0; i < x.elements(); ++i) EXPECT_EQ(dx[0].As<float>()[i], x.As<float>()[i]);
  EXPECT_THAT(
      split.Forward(pass, {TestTensor(DType::kF32, {2, 3, 16}, 1)}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split: input has the shape [2, 3, 16]")));
}

TEST(Heads, MergeIntoColumns) {
  MergeHeads merge("merge", 2);
  CheckGradients(merge, {TestTensor(DType::kBF16, {2, 3, 2, 4}, 1)},
                 [](const Values& v) -> Values { return {v[0]}; }, {.dtype = DType::kBF16});
  Invocation pass;
  EXPECT_THAT(merge.Forward(pass, {TestTensor(DType::kF32, {2, 3, 4, 4}, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[batch, tokens, 2 heads, head_dim]")));
}

}  // namespace
}  // namespace weft
