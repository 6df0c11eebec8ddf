// The mask of Dropout: its distribution, and what it depends on.
#include "weft/nn/dropout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/linear.h"
#include "weft/nn/materialize.h"
#include "weft/nn/sequential.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

constexpr int64_t kSamples = 4, kTokens = 6, kColumns = 7;

struct Draw {
  RandomKey key = MakeRandomKey(/*seed=*/1, /*step=*/2, /*first_sample=*/0, kSamples);
  std::string name = "h.0.drop";
  TokenRuns runs = WholeSequence(kTokens);
  DType dtype = DType::kF32;
};

// Factors [samples, tokens, columns] of a mask with the probability 1/2: 0 or 2.
std::vector<float> MaskOf(const Draw& draw) {
  Dropout dropout(draw.name, 0.5F);
  const Shape shape = {static_cast<int64_t>(draw.key.samples.size()), TokenCount(draw.runs), kColumns};
  const Tensor x = Tensor::Empty(DType::kF32, shape);
  std::fill_n(x.As<float>(), x.elements(), 1.0F);
  Invocation pass;
  pass.SetRandomKey(draw.key);
  pass.SetSequence(std::make_shared<SequenceParts>(SequenceParts{{draw.runs}, 0}));
  const absl::StatusOr<Tensors> y = dropout.Forward(pass, {x});
  EXPECT_OK(y);
  return {(*y)[0].As<float>(), (*y)[0].As<float>() + x.elements()};
}

TEST(Dropout, ZeroesElementsWithItsProbabilityAndScalesTheOthers) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Dropout dropout("drop", 0.2F);
    const Tensor x = TestTensor(dtype, {8, 64, 128}, 1);
    Invocation pass;
    pass.SetRandomKey(MakeRandomKey(3, 0, 0, 8));
    ASSERT_OK_AND_ASSIGN(const Tensors y, dropout.Forward(pass, {x}));
    ASSERT_OK_AND_ASSIGN(const Tensors dx, dropout.Backward(pass, {x}));
    EXPECT_EQ(std::memcmp(dx[0].view().data, y[0].view().data, x.bytes()), 0);
    const auto value = [&](const Tensor& tensor, int64_t i) {
      return dtype == DType::kF32 ? tensor.As<float>()[i] : ToFloat(tensor.As<BF16>()[i]);
    };
    double zeros = 0;
    for (int64_t i = 0; i < x.elements(); ++i) {
      if (value(y[0], i) == 0.0F) {
        ++zeros;
      } else {
        EXPECT_NEAR(value(y[0], i), value(x, i) * 1.25F, dtype == DType::kF32 ? 1e-6 : 0.01);
      }
    }
    // Within five standard deviations, 0.4 / sqrt(65536) each.
    EXPECT_NEAR(zeros / static_cast<double>(x.elements()), 0.2, 5 * 0.4 / 256);
    EXPECT_TRUE(pass.empty());
  }
}

TEST(Dropout, HasTheSameMaskForEveryDivisionOfBatchAndSequence) {
  const std::vector<float> whole = MaskOf({});
  const auto expect_part = [&](const std::vector<int64_t>& samples, const TokenRuns& runs) {
    const std::vector<float> part = MaskOf({.key = {1, 2, samples}, .runs = runs});
    size_t at = 0;
    for (const int64_t sample : samples) {
      for (const int64_t position : Positions(runs)) {
        for (int64_t column = 0; column < kColumns; ++column) {
          EXPECT_EQ(part[at++],
                    whole[static_cast<size_t>((sample * kTokens + position) * kColumns + column)]);
        }
      }
    }
  };
  for (const int64_t sample : {0, 1, 2, 3}) expect_part({sample}, WholeSequence(kTokens));  // 2 x 2 ranks.
  expect_part({0, 1}, WholeSequence(kTokens));                                              // 2 ranks.
  expect_part({2, 3}, WholeSequence(kTokens));
  expect_part({0, 1, 2, 3}, {{0, 0, 1}, {0, 4, 2}});  // Two ranks that share the sequences.
  expect_part({0, 1, 2, 3}, {{0, 1, 3}});
}

TEST(Dropout, HasAnotherMaskForEverySeedStepSampleDocumentPositionAndName) {
  const std::vector<float> mask = MaskOf({});
  EXPECT_EQ(MaskOf({}), mask);
  EXPECT_NE(MaskOf({.key = MakeRandomKey(9, 2, 0, kSamples)}), mask);
  EXPECT_NE(MaskOf({.key = MakeRandomKey(1, 3, 0, kSamples)}), mask);
  EXPECT_NE(MaskOf({.key = MakeRandomKey(1, 2, 4, kSamples)}), mask);
  EXPECT_NE(MaskOf({.name = "h.1.drop"}), mask);
  EXPECT_NE(MaskOf({.runs = {{1, 0, kTokens}}}), mask);
  EXPECT_NE(MaskOf({.runs = {{0, 1, kTokens}}}), mask);
}

TEST(Dropout, HasTheSameMaskInARecomputedForward) {
  const auto gradients = [](bool checkpointing) {
    Sequential net("net");
    auto& block = net.Add<Sequential>("block");
    block.Add<Linear>("up", 5, 9);
    block.Add<Dropout>("drop", 0.5F);
    block.Add<Linear>("down", 9, 5);
    block.SetActivationCheckpointing(checkpointing);
    const MaterializedParameters memory(net, 1, DType::kF32, DType::kF32);
    Invocation pass;
    pass.SetRandomKey(MakeRandomKey(1, 0, 0, 2));
    const Tensor x = TestTensor(DType::kF32, {2, 3, 5}, 1);
    EXPECT_OK(net.Forward(pass, {x}));
    EXPECT_OK(net.Backward(pass, {x}));
    std::vector<float> values;
    for (const auto& parameter : net.AllParameters()) {
      values.insert(values.end(), parameter->grad.As<float>(),
                    parameter->grad.As<float>() + parameter->elements());
    }
    return values;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(Dropout, PassesItsInputThroughInEvaluationAndWithoutAProbability) {
  const Tensor x = TestTensor(DType::kF32, {2, 3, 5}, 1);
  Dropout dropout("drop", 0.5F);
  Invocation evaluation(/*gradients=*/false);
  ASSERT_OK_AND_ASSIGN(const Tensors y, dropout.Forward(evaluation, {x}));
  EXPECT_EQ(y[0].view().data, x.view().data);
  Dropout none("none", 0.0F);
  Invocation training;
  ASSERT_OK_AND_ASSIGN(const Tensors same, none.Forward(training, {x}));
  EXPECT_EQ(same[0].view().data, x.view().data);
  EXPECT_OK(none.Backward(training, {x}));
}

TEST(Dropout, RejectsAPassWithoutAKeyAndWrongProbabilities) {
  const Tensor x = TestTensor(DType::kF32, {2, 3, 5}, 1);
  Dropout dropout("h.0.drop", 0.5F);
  Invocation pass;
  EXPECT_THAT(dropout.Forward(pass, {x}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("h.0.drop: the pass has gradients but no random key")));
  pass.SetRandomKey(MakeRandomKey(1, 0, 0, 3));
  EXPECT_THAT(dropout.Forward(pass, {x}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("h.0.drop: the batch has 2 rows, the random key 3 samples")));
  for (const float probability : {-0.1F, 1.0F, std::nanf("")}) {
    Dropout wrong("wrong", probability);
    EXPECT_THAT(wrong.Forward(pass, {x}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wrong: the probability is")));
  }
}

}  // namespace
}  // namespace weft
