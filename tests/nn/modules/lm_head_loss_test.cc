// The head with its loss.
#include "weft/nn/lm_head_loss.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/nn/take_from_system.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/materialize.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST(LmHeadLoss, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    for (const int64_t vocab_size : {1, 2, 37, 70}) {
      LmHeadLoss head("lm_head", vocab_size, 6);
      CheckGradients(
          head, {TestTensor(options.dtype, {2, 5, 6}, 1), TestIds({2, 5}, vocab_size, 2)},
          [=](const Values& v) -> Values {
            return {{oracle::CrossEntropy(oracle::Linear(v[0], v[2], 6, vocab_size), v[1], vocab_size)}};
          },
          options);
    }
  }
}

TEST(LmHeadLoss, GivesTheSameLossWhenTokensComeInSeveralChunks) {
  // A chunk has 64 tokens for a vocabulary of this size.
  constexpr int64_t kVocab = 20000;
  constexpr int64_t kTokens = 70;
  LmHeadLoss head("lm_head", kVocab, 3);
  CheckGradients(head, {TestTensor(DType::kF32, {kTokens, 3}, 1), TestIds({kTokens}, kVocab, 2)},
                 [](const Values& v) -> Values {
                   return {{oracle::CrossEntropy(oracle::Linear(v[0], v[2], 3, kVocab), v[1], kVocab)}};
                 },
                 {.elements = 2});
}

TEST(LmHeadLoss, ScalesLossAndGradientsAlike) {
  LmHeadLoss head("lm_head", 9, 4);
  const MaterializedParameters memory(head, 3, DType::kF32, DType::kF32);
  const Tensor hidden = TestTensor(DType::kF32, {6, 4}, 1);
  const Tensor targets = TestIds({6}, 9, 2);
  const auto run = [&](float scale, Doubles& gradient) {
    Invocation invocation(/*gradients=*/true, scale);
    const auto loss = head.Forward(invocation, {hidden, targets});
    const auto gradients = head.Backward(invocation, {Tensor::Scalar(1.0F)});
    const auto* values = (*gradients)[0].As<float>();
    gradient.assign(values, values + 24);
    return *(*loss)[0].As<float>();
  };
  Doubles whole;
  Doubles quarter;
  EXPECT_EQ(run(1.0F, whole), 4.0F * run(0.25F, quarter));
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], 4.0 * quarter[i], 1e-6);
}

// The formula of LogitsScratchBytes against the tensors that a forward takes from the system.
TEST(LmHeadLoss, TakesMemoryForItsGradientsAndForTheLogitsOfAChunk) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [vocab_size, tokens] : {std::pair{20011, 150}, {20011, 60}, {4099, 300}}) {
      LmHeadLoss head("lm_head", vocab_size, 3);
      const MaterializedParameters memory(head, 3, dtype, DType::kF32);
      const Tensor hidden = TestTensor(dtype, {tokens, 3}, 1);
      const Tensor targets = TestIds({tokens}, vocab_size, 2);
      const auto forward = [&] {
        Invocation invocation(/*gradients=*/true);
        EXPECT_OK(head.Forward(invocation, {hidden, targets}).status());
      };
      forward();  // From now on products have their scratch memory.
      std::vector<Tensor> taken;
      int64_t expected = 0;
      const int64_t gradients = BytesOf(int64_t{tokens} * vocab_size, dtype);
      for (const int64_t bytes : {gradients, LogitsScratchBytes(tokens, vocab_size, dtype), int64_t{4}}) {
        expected += TakeFromSystem(bytes, taken);
      }
      const int64_t before = TensorBytesFromSystem();
      forward();
      EXPECT_EQ(TensorBytesFromSystem() - before, expected)
          << Name(dtype) << " " << vocab_size << " " << tokens;
    }
  }
}

// Half of a million targets, of which most are in other microbatches: most gradients are below the smallest
// number of f16, unless they have a loss scale.
TEST(LmHeadLoss, KeepsSmallGradientsInF16WithALossScale) {
  LmHeadLoss head("lm_head", 64, 4);
  const Tensor targets = TestIds({6}, 64, 2);
  const auto gradient_in = [&](DType dtype, float loss_gradient) {
    const MaterializedParameters memory(head, 3, dtype, DType::kF32);
    Invocation invocation(/*gradients=*/true, 0x1p-19F);
    EXPECT_OK(head.Forward(invocation, {TestTensor(dtype, {6, 4}, 1), targets}).status());
    EXPECT_OK(head.Backward(invocation, {Tensor::Scalar(loss_gradient)}).status());
    const auto* values = head.parameters()[0]->grad.As<float>();
    Doubles gradient(values, values + 64 * 4);
    for (double& value : gradient) value /= loss_gradient;
    return gradient;
  };
  const Doubles exact = gradient_in(DType::kF32, 1.0F);
  const Doubles scaled = gradient_in(DType::kF16, 0x1p16F);
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(scaled[i], exact[i], 0x1p-19 * 0x1p-9);
}

TEST(LmHeadLoss, GivesIgnoredTargetsNeitherLossNorGradient) {
  LmHeadLoss head("lm_head", 9, 4);
  const MaterializedParameters memory(head, 3, DType::kF32, DType::kF32);
  const Tensor hidden = TestTensor(DType::kF32, {5, 4}, 1);
  const Tensor targets = TestIds({5}, 9, 2);
  const auto loss_of = [&](const Tensor& rows, const Tensor& wanted, bool gradients) {
    Invocation invocation(gradients);
    return *(*head.Forward(invocation, {rows, wanted}))[0].As<float>();
  };
  const float whole = loss_of(hidden, targets, true);
  const auto tail = [](const Tensor& tensor) { return Tensor::Borrow(tensor.view().Slice(0, 2, 3)); };
  const float of_tail = loss_of(tail(hidden), tail(targets), true);

  for (int i = 0; i < 2; ++i) targets.As<int32_t>()[i] = kIgnoredTarget;
  EXPECT_FLOAT_EQ(loss_of(hidden, targets, false), of_tail);
  EXPECT_NE(of_tail, whole);
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors loss, head.Forward(invocation, {hidden, targets}));
  EXPECT_FLOAT_EQ(*loss[0].As<float>(), of_tail);
  ASSERT_OK_AND_ASSIGN(const Tensors gradients, head.Backward(invocation, {Tensor::Scalar(1.0F)}));
  const absl::Span<const float> values(gradients[0].As<float>(), 20);
  EXPECT_THAT(values.subspan(0, 8), ::testing::Each(0.0F));
  EXPECT_THAT(values.subspan(8), ::testing::Each(::testing::Ne(0.0F)));
}

TEST(LmHeadLoss, IsStableForLargeLogits) {
  LmHeadLoss head("lm_head", 3, 1);
  const MaterializedParameters memory(head, 0, DType::kF32, DType::kF32);
  const float weights[] = {1000.0F, 0.0F, -1000.0F};
  std::copy(weights, weights + 3, head.parameters()[0]->data.As<float>());
  const Tensor hidden = Tensor::Empty(DType::kF32, {1, 1});
  *hidden.As<float>() = 1.0F;
  const Tensor targets = Tensor::Zeros(DType::kI32, {1});
  *targets.As<int32_t>() = 2;
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors loss, head.Forward(invocation, {hidden, targets}));
  EXPECT_FLOAT_EQ(*loss[0].As<float>(), 2000.0F);
}

TEST(LmHeadLoss, RejectsATargetOutsideTheVocabulary) {
  LmHeadLoss head("lm_head", 3, 1);
  const MaterializedParameters memory(head, 0, DType::kF32, DType::kF32);
  const Tensor targets = Tensor::Zeros(DType::kI32, {2});
  targets.As<int32_t>()[1] = 7;
  Invocation invocation;
  EXPECT_THAT(
      head.Forward(invocation, {Tensor::Zeros(DType::kF32, {2, 1}), targets}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("targets of lm_head: token 7 at position 1")));
}

}  // namespace
}  // namespace weft
