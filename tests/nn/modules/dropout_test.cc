// The mask of Dropout: its distribution, and what it depends on.
#include "weft/nn/dropout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
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
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Dropout dropout("drop", 0.2F);
    const Tensor x = TestTensor(dtype, {8, 64, 128}, 1);
    Invocation pass;
    pass.SetRandomKey(MakeRandomKey(3, 0, 0, 8));
    ASSERT_OK_AND_ASSIGN(const Tensors y, dropout.Forward(pass, {x}));
    ASSERT_OK_AND_ASSIGN(const Tensors dx, dropout.Backward(pass, {x}));
    EXPECT_EQ(std::memcmp(dx[0].view().data, y[0].view().data, x.bytes()), 0);
    const auto value = [&](const Tensor& tensor, int64_t i) {
      if (dtype == DType::kF32) return tensor.As<float>()[i];
      return dtype == DType::kBF16 ? ToFloat(tensor.As<BF16>()[i]) : ToFloat(tensor.As<F16>()[i]);
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

TEST(Dropout, HasTheSameMaskInAPackOfSamples) {
  const std::vector<float> rows = MaskOf({.key = MakeRandomKey(1, 2, 0, 2)});
  RandomKey key = MakeRandomKey(1, 2, 0, 2);
  key.samples = {0};
  key.documents = {{0, 0}, {1, 0}};
  EXPECT_EQ(MaskOf({.key = key, .runs = {{0, 0, kTokens}, {1, 0, kTokens}}}), rows);
  key.documents[1].number = 1;
  EXPECT_NE(MaskOf({.key = key, .runs = {{0, 0, kTokens}, {1, 0, kTokens}}}), rows);
}

// With x = 1, W = 0, and A and B the identity, the outputs of an adapter are its mask times the scaling.
class AdapterDropout : public ::testing::Test {
 protected:
  static constexpr int64_t kWidth = 64;

  AdapterDropout()
      : linear_("layer", kWidth, std::vector<Linear::Output>{{"q.weight", kWidth}, {"v.weight", kWidth}}) {
    for (size_t output = 0; output < 2; ++output) linear_.AddAdapter(output, kWidth, 3.0F, 0.2F);
    memory_.emplace(linear_, 1, DType::kF32, DType::kF32);
    for (const auto& parameter : linear_.AllParameters()) {
      const bool is_weight = parameter->name.find("lora") == std::string::npos;
      for (int64_t i = 0; i < parameter->elements(); ++i) {
        parameter->data.As<float>()[i] = !is_weight && i / kWidth == i % kWidth ? 1.0F : 0.0F;
      }
    }
    std::fill_n(ones_.As<float>(), ones_.elements(), 1.0F);
  }

  static std::vector<float> ValuesOf(const Tensor& tensor) {
    return {tensor.As<float>(), tensor.As<float>() + tensor.elements()};
  }

  Linear linear_;
  std::optional<MaterializedParameters> memory_;
  const Tensor ones_ = Tensor::Empty(DType::kF32, {2, 64, kWidth});
};

TEST_F(AdapterDropout, DropsElementsOfTheInputOfEachAdapterInTraining) {
  Invocation pass;
  pass.SetRandomKey(MakeRandomKey(3, 0, 0, 2));
  ASSERT_OK_AND_ASSIGN(const Tensors y, linear_.Forward(pass, {ones_}));
  const std::vector<float> q = ValuesOf(y[0]);
  const std::vector<float> v = ValuesOf(y[1]);
  EXPECT_NE(q, v);  // Each adapter has a mask of its own.
  const auto zeros = static_cast<double>(std::count(q.begin(), q.end(), 0.0F));
  // Within five standard deviations, 0.4 / sqrt(8192) each.
  EXPECT_NEAR(zeros / static_cast<double>(q.size()), 0.2, 5 * 0.4 / 90.5);
  for (const float value : q) EXPECT_TRUE(value == 0.0F || std::abs(value - 3.75F) < 1e-5F) << value;
  // The masks of backward are those of forward, in the gradients of the input and of A.
  ASSERT_OK_AND_ASSIGN(const Tensors dx, linear_.Backward(pass, {ones_, ones_}));
  double sum = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    EXPECT_FLOAT_EQ(dx[0].As<float>()[i], q[i] + v[i]);
    sum += q[i];
  }
  double gradient = 0;
  const auto& a = linear_.parameters()[2];
  for (int64_t i = 0; i < a->elements(); ++i) gradient += a->grad.As<float>()[i];
  EXPECT_NEAR(gradient / (kWidth * sum), 1, 1e-4);
}

TEST_F(AdapterDropout, HasTheSameInputGradientIfOnlyBIsTrained) {
  const auto input_gradient = [&] {
    Invocation pass;
    pass.SetRandomKey(MakeRandomKey(3, 0, 0, 2));
    EXPECT_OK(linear_.Forward(pass, {ones_}));
    const absl::StatusOr<Tensors> dx = linear_.Backward(pass, {ones_, ones_});
    EXPECT_OK(dx);
    return ValuesOf((*dx)[0]);
  };
  const std::vector<float> all_trained = input_gradient();
  for (const auto& parameter : linear_.AllParameters()) {
    parameter->requires_grad = parameter->name.find("lora_B") != std::string::npos;
  }
  EXPECT_EQ(input_gradient(), all_trained);
}

TEST_F(AdapterDropout, DropsNothingInEvaluationAndNeedsAKeyInTraining) {
  Invocation evaluation(/*gradients=*/false);
  ASSERT_OK_AND_ASSIGN(const Tensors y, linear_.Forward(evaluation, {ones_}));
  EXPECT_EQ(ValuesOf(y[0]), std::vector<float>(static_cast<size_t>(ones_.elements()), 3.0F));
  Invocation pass;
  EXPECT_THAT(linear_.Forward(pass, {ones_}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("base_model.model.layer.q.lora_dropout: the pass has gradients but no")));
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
  RandomKey pack{1, 2, {0, 1}};
  pack.documents = {{0, 0}};
  pass.SetRandomKey(pack);
  EXPECT_THAT(dropout.Forward(pass, {x}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   HasSubstr("documents of a pack, which is one row")));
  for (const float probability : {-0.1F, 1.0F, std::nanf("")}) {
    Dropout wrong("wrong", probability);
    EXPECT_THAT(wrong.Forward(pass, {x}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wrong: the probability is")));
  }
}

}  // namespace
}  // namespace weft
