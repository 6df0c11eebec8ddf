#include "weft/nn/rope.h"

#include <cmath>
#include <numbers>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST(RopeFrequencies, FallGeometricallyFromOne) {
  const std::vector<float> frequencies = RopeFrequencies(8, 10000.0, std::nullopt);
  ASSERT_EQ(frequencies.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    const double exact = std::pow(10000.0, -static_cast<double>(i) / 4.0);
    EXPECT_NEAR(frequencies[i], exact, 2e-7 * exact);
  }
}

TEST(RopeFrequencies, KeepShortScaleLongAndBlendMediumWavelengthsForLlama3) {
  const Llama3RopeScaling scaling = {8.0F, 1.0F, 4.0F, 8192};
  const std::vector<float> plain = RopeFrequencies(128, 500000.0, std::nullopt);
  const std::vector<float> scaled = RopeFrequencies(128, 500000.0, scaling);
  int kept = 0;
  int blended = 0;
  int stretched = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2.0 * std::numbers::pi / plain[i];
    if (wavelength < 8192.0 / 4.0) {
      ++kept;
      EXPECT_EQ(scaled[i], plain[i]);
    } else if (wavelength > 8192.0 / 1.0) {
      ++stretched;
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8.0F);
    } else {
      ++blended;
      const double part = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
      EXPECT_NEAR(scaled[i], (1.0 - part) * plain[i] / 8.0 + part * plain[i], 1e-6 * plain[i]);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(blended, 0);
  EXPECT_GT(stretched, 0);
}

TEST(Rope, HasGradientsThatMatchFiniteDifferences) {
  const std::vector<float> frequencies = RopeFrequencies(6, 100.0, std::nullopt);
  for (const GradientCheckOptions& options :
       {GradientCheckOptions{}, GradientCheckOptions{.dtype = DType::kBF16, .tolerance = 0x1p-7},
        GradientCheckOptions{.dtype = DType::kF16, .tolerance = 0x1p-10}}) {
    Rope rope("rope", std::make_shared<RopeTable>(frequencies));
    CheckGradients(
        rope, {TestTensor(options.dtype, {2, 7, 4, 6}, 1), TestTensor(options.dtype, {2, 7, 2, 6}, 2)},
        [&](const Values& v) -> Values {
          return {oracle::Rope(v[0], 7, 4, frequencies), oracle::Rope(v[1], 7, 2, frequencies)};
        },
        options);
  }
}

TEST(Rope, RotatesOnlyTheFirstElementsOfLongerHeads) {
  const std::vector<float> frequencies = RopeFrequencies(4, 100.0, std::nullopt);
  for (const int64_t head_dim : {4, 5, 10}) {
    Rope rope("rope", std::make_shared<RopeTable>(frequencies), head_dim);
    CheckGradients(rope, {TestTensor(DType::kF32, {2, 7, 3, head_dim}, 1)}, [&](const Values& v) -> Values {
      return {oracle::PartialRope(v[0], 7, 3, head_dim, frequencies)};
    });
  }
}

TEST(Rope, RotatesByThePositionsOfTheSequence) {
  Rope rope("rope", std::make_shared<RopeTable>(RopeFrequencies(6, 100.0, std::nullopt)));
  const auto values = [](const TensorView& view) { return testing::ToDoubleValues(view); };
  Invocation whole;
  const Tensor rotated = (*rope.Forward(whole, {TestTensor(DType::kF32, {2, 9, 3, 6}, 1)}))[0];

  const auto parts = std::make_shared<SequenceParts>();
  parts->parts = {{{0, 0, 2}, {0, 7, 2}}, {{0, 2, 5}}};
  Invocation part;
  part.SetSequence(parts);
  const Tensor tokens = TestTensor(DType::kF32, {2, 9, 3, 6}, 1);
  const Tensor own = Tensor::Empty(DType::kF32, {2, 4, 3, 6});
  for (const int64_t half : {0, 1}) {
    ASSERT_TRUE(StridedCopy(tokens.view().Slice(1, 7 * half, 2), own.view().Slice(1, 2 * half, 2)).ok());
  }
  const std::vector<double> before = values(own.view());
  ASSERT_TRUE(rope.Forward(part, {own}).ok());
  for (const int64_t half : {0, 1}) {
    EXPECT_EQ(values(own.view().Slice(1, 2 * half, 2)), values(rotated.view().Slice(1, 7 * half, 2)));
  }
  ASSERT_TRUE(rope.Backward(part, {own}).ok());
  EXPECT_THAT(values(own.view()), ::testing::Pointwise(::testing::DoubleNear(1e-6), before));
  EXPECT_EQ(rope.Forward(part, {tokens}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Rope, FailsWithoutWritingWhileATensorHasReaders) {
  Rope rope("rope", std::make_shared<RopeTable>(RopeFrequencies(4, 10000.0, std::nullopt)));
  const Tensor unread = TestTensor(DType::kF32, {1, 3, 2, 4}, 1);
  const Tensor read = TestTensor(DType::kF32, {1, 3, 2, 4}, 2);
  const Tensor unread_before = unread.Copy();
  const Tensor read_before = read.Copy();
  Invocation invocation;
  const std::string use = "a tensor that a peer reads";
  invocation.AddReader(read, &use);
  invocation.AddReader(read, &use);
  for (int readers = 2; readers > 0; --readers) {
    EXPECT_THAT(
        rope.Forward(invocation, {unread, read}).status(),
        StatusIs(absl::StatusCode::kFailedPrecondition, "rope would overwrite a tensor that a peer reads"));
    EXPECT_EQ(testing::ToDoubleValues(unread.view()), testing::ToDoubleValues(unread_before.view()));
    EXPECT_EQ(testing::ToDoubleValues(read.view()), testing::ToDoubleValues(read_before.view()));
    invocation.RemoveReader(read, &use);
  }
  EXPECT_OK(rope.Forward(invocation, {unread, read}).status());
  EXPECT_NE(testing::ToDoubleValues(read.view()), testing::ToDoubleValues(read_before.view()));
}

TEST(Rope, FailsWithoutWritingIfALaterTensorIsInvalid) {
  Rope rope("rope", std::make_shared<RopeTable>(RopeFrequencies(4, 10000.0, std::nullopt)));
  const Tensor valid = TestTensor(DType::kF32, {1, 3, 2, 4}, 1);
  const Tensor before = valid.Copy();
  Invocation invocation;
  EXPECT_THAT(rope.Forward(invocation, {valid, TestTensor(DType::kF32, {1, 3, 2, 6}, 2)}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[1, 3, 2, 6]")));
  EXPECT_EQ(testing::ToDoubleValues(valid.view()), testing::ToDoubleValues(before.view()));
}

TEST(Rope, FailsIfAWindowOfAnInputHasAReader) {
  Rope rope("rope", std::make_shared<RopeTable>(RopeFrequencies(4, 10000.0, std::nullopt)));
  const Tensor whole = TestTensor(DType::kF32, {1, 3, 2, 4}, 1);
  const std::string use = "a tensor that a peer reads";
  const Tensor head = whole.Window(whole.view().Slice(2, 1, 1));
  const Tensor last_token = whole.Window(whole.view().Slice(1, 2, 1));
  const Tensor other_tokens = whole.Window(whole.view().Slice(1, 0, 2));
  const auto is_refused = StatusIs(absl::StatusCode::kFailedPrecondition, "rope would overwrite " + use);
  for (const Tensor& read : {head, last_token}) {
    Invocation invocation;
    invocation.AddReader(read, &use);
    EXPECT_THAT(rope.Forward(invocation, {whole}).status(), is_refused);
    invocation.RemoveReader(read, &use);
    EXPECT_OK(rope.Forward(invocation, {whole}).status());
  }
  Invocation invocation;
  invocation.AddReader(last_token, &use);
  invocation.AddReader(whole.Window(whole.view().Slice(1, 1, 0)), &use);  // Without elements.
  EXPECT_OK(rope.Forward(invocation, {other_tokens}).status());
  EXPECT_THAT(rope.Forward(invocation, {last_token}).status(), is_refused);
  invocation.AddReader(whole, &use);
  invocation.RemoveReader(last_token, &use);
  EXPECT_THAT(rope.Forward(invocation, {other_tokens}).status(), is_refused);
}

TEST(Rope, RotatesACopyOfAGradientThatHasAReader) {
  Rope rope("rope", std::make_shared<RopeTable>(RopeFrequencies(4, 10000.0, std::nullopt)));
  const auto gradients = [] {
    return Tensors{TestTensor(DType::kF32, {1, 3, 2, 4}, 1), TestTensor(DType::kF32, {1, 3, 2, 4}, 2)};
  };
  Invocation invocation;
  for (int pass = 0; pass < 2; ++pass) ASSERT_OK(rope.Forward(invocation, gradients()));
  ASSERT_OK_AND_ASSIGN(const Tensors expected, rope.Backward(invocation, gradients()));
  const Tensors given = gradients();
  const std::string use = "a gradient that is added to another";
  invocation.AddReader(given[0], &use);
  ASSERT_OK_AND_ASSIGN(const Tensors rotated, rope.Backward(invocation, given));
  for (size_t i = 0; i < rotated.size(); ++i) {
    EXPECT_EQ(testing::ToDoubleValues(rotated[i].view()), testing::ToDoubleValues(expected[i].view()));
  }
  EXPECT_EQ(testing::ToDoubleValues(given[0].view()), testing::ToDoubleValues(gradients()[0].view()));
  EXPECT_EQ(rotated[1].view().data, given[1].view().data);
}

TEST(Rope, GrowsItsTableWithTheSequence) {
  RopeTable table(RopeFrequencies(4, 10000.0, std::nullopt));
  table.Grow(3);
  const float before = table.sines(2)[0];
  table.Grow(100);
  EXPECT_EQ(table.sines(2)[0], before);
  EXPECT_NEAR(table.cosines(99)[0], std::cos(99.0), 1e-6);
  EXPECT_NEAR(table.sines(99)[1], std::sin(0.99), 1e-6);
}

}  // namespace
}  // namespace weft
