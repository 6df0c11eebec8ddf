#include "sharding/plan/parameter_views.h"

#include <array>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<Parameter> MakeParameter(std::string name, Shape shape) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = std::move(name);
  parameter->shape = std::move(shape);
  return parameter;
}

// Two parameters and an image that holds 0, 1, 2, …: "a" [2, 2] at 0, "b" [3] at 16.
class ParameterViews : public ::testing::Test {
 protected:
  ParameterViews() {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i);
  }

  Parameters parameters_ = {MakeParameter("a", {2, 2}), MakeParameter("b", {3})};
  FlatLayout layout_ = *FlatLayout::Make(FlatKind::kContiguous, {{{2, 2}}, {{3}}}, 1, 16);
  std::array<float, 32> values_;
  FlatImage image_{layout_, values_.data(), DType::kF32};
  Parameter& a_ = *parameters_[0];
  Parameter& b_ = *parameters_[1];
};

TEST_F(ParameterViews, PointIntoTheImageWithoutACopy) {
  ASSERT_OK_AND_ASSIGN(const int64_t copied_bytes, ViewData(parameters_, image_));
  EXPECT_EQ(a_.data.As<float>(), values_.data());
  EXPECT_EQ(b_.data.As<float>(), values_.data() + 16);
  EXPECT_EQ(b_.data.shape, b_.shape);
  EXPECT_EQ(copied_bytes, 0);
  ForgetData(parameters_, image_);
  EXPECT_EQ(a_.data.data, nullptr);
}

TEST_F(ParameterViews, CopyIntoForeignStorage) {
  std::array<float, 6> own = {};
  b_.data = {own.data(), DType::kF32, {3}, {2}};  // Every other element.
  ASSERT_OK_AND_ASSIGN(const int64_t copied_bytes, ViewData(parameters_, image_));
  EXPECT_THAT(own, ElementsAre(16, 0, 17, 0, 18, 0));
  EXPECT_EQ(copied_bytes, 12);
  EXPECT_EQ(a_.data.data, values_.data());
  ForgetData(parameters_, image_);
  EXPECT_EQ(a_.data.data, nullptr);
  EXPECT_EQ(b_.data.data, own.data());
}

TEST_F(ParameterViews, ChangeNoParameterIfOneDoesNotFit) {
  std::array<float, 8> own = {};
  const auto expect_refused = [this] {
    EXPECT_THAT(ViewData(parameters_, image_), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                        AllOf(HasSubstr("'b'"), HasSubstr("f32 [3]"))));
    EXPECT_EQ(a_.data.data, nullptr);
  };
  b_.data = TensorView::Contiguous(own.data(), DType::kF32, {4});
  expect_refused();
  b_.data = TensorView::Contiguous(own.data(), DType::kBF16, {3});
  expect_refused();
  b_.data.data = nullptr;
  EXPECT_OK(ViewData(parameters_, image_));
}

TEST_F(ParameterViews, StartGradientsUnwrittenAndOnlyIfRequired) {
  a_.grad_written = true;
  b_.requires_grad = false;
  ViewGradients(parameters_, image_);
  EXPECT_EQ(a_.grad.As<float>(), values_.data());
  EXPECT_FALSE(a_.grad_written);
  EXPECT_EQ(b_.grad.data, nullptr);
}

TEST_F(ParameterViews, ZeroGradientsThatWereNotWritten) {
  b_.requires_grad = false;
  ViewGradients(parameters_, image_);
  ASSERT_OK_AND_ASSIGN(const int64_t copied_bytes, CollectGradients(parameters_, image_));
  EXPECT_EQ(copied_bytes, 0);
  EXPECT_THAT(std::vector<float>(values_.begin(), values_.begin() + 5), ElementsAre(0, 0, 0, 0, 4));
  EXPECT_THAT(std::vector<float>(values_.begin() + 15, values_.begin() + 20), ElementsAre(15, 0, 0, 0, 19));
}

TEST_F(ParameterViews, KeepWrittenGradientsAndCollectReplacedOnes) {
  ViewGradients(parameters_, image_);
  a_.grad_written = true;
  std::array<float, 3> replacement = {7, 8, 9};
  b_.grad = TensorView::Contiguous(replacement.data(), DType::kF32, {3});
  ASSERT_OK_AND_ASSIGN(const int64_t copied_bytes, CollectGradients(parameters_, image_));
  EXPECT_EQ(copied_bytes, 12);
  EXPECT_THAT(std::vector<float>(values_.begin(), values_.begin() + 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(std::vector<float>(values_.begin() + 16, values_.begin() + 19), ElementsAre(7, 8, 9));
  ForgetGradients(parameters_);
  EXPECT_EQ(b_.grad.data, nullptr);
}

TEST_F(ParameterViews, RefuseAReplacedGradientOfAnotherShape) {
  ViewGradients(parameters_, image_);
  std::array<float, 4> replacement = {};
  b_.grad = TensorView::Contiguous(replacement.data(), DType::kF32, {4});
  EXPECT_THAT(CollectGradients(parameters_, image_),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("'b'"), HasSubstr("[4]"))));
  EXPECT_EQ(values_[0], 0);
  EXPECT_EQ(values_[1], 1);  // The unwritten gradient of "a" was not zeroed.
}

}  // namespace
}  // namespace weft::testing
