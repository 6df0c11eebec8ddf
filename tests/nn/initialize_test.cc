#include "weft/nn/initialize.h"

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/nn/kernels/philox.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

Parameter MakeParameter(std::string name, Shape shape, Initializer initializer = {}) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.initializer = initializer;
  return parameter;
}

std::vector<float> InitialValues(const Parameter& parameter, uint64_t seed, int64_t start, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  FillInitialValues(parameter, seed, start, count, values.data());
  return values;
}

// Known-answer vectors of Random123, the library of the paper's authors.
TEST(Philox, MatchesThePublishedTestVectors) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Initialize, GivesAnElementTheSameValueFromEveryStart) {
  const Parameter parameter = MakeParameter("weight", {7, 61});
  const int64_t elements = parameter.elements();
  const std::vector<float> whole = InitialValues(parameter, 5, 0, elements);
  for (int64_t start = 0; start < 9; ++start) {
    for (const int64_t count :
         {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{5}, int64_t{97}, elements - start}) {
      const std::vector<float> part(whole.begin() + start, whole.begin() + start + count);
      EXPECT_EQ(InitialValues(parameter, 5, start, count), part) << "start " << start << " count " << count;
    }
  }
}

TEST(Initialize, DoesNotDependOnTheThreadCount) {
  const Parameter parameter = MakeParameter("weight", {300, 301});
  const int threads = ThreadCount();
  SetThreadCount(1);
  const std::vector<float> one = InitialValues(parameter, 1, 0, parameter.elements());
  SetThreadCount(3);
  EXPECT_EQ(InitialValues(parameter, 1, 0, parameter.elements()), one);
  SetThreadCount(threads);
}

TEST(Initialize, DependsOnSeedAndName) {
  const Parameter a = MakeParameter("a", {64});
  const Parameter b = MakeParameter("b", {64});
  EXPECT_NE(InitialValues(a, 0, 0, 64), InitialValues(b, 0, 0, 64));
  EXPECT_NE(InitialValues(a, 0, 0, 64), InitialValues(a, 1, 0, 64));
}

TEST(Initialize, DrawsNormalsOfTheGivenMoments) {
  const Parameter parameter = MakeParameter("weight", {1 << 18}, {.mean = 0.5F, .stddev = 2.0F});
  const std::vector<float> values = InitialValues(parameter, 3, 0, parameter.elements());
  const double n = static_cast<double>(values.size());
  double mean = 0;
  double square = 0;
  double beyond_two = 0;
  for (const float value : values) {
    const double z = (value - 0.5) / 2.0;
    mean += z / n;
    square += z * z / n;
    beyond_two += (std::abs(z) > 2.0 ? 1.0 : 0.0) / n;
  }
  // Tolerances of five standard errors of each estimate.
  EXPECT_NEAR(mean, 0.0, 5.0 / std::sqrt(n));
  EXPECT_NEAR(square, 1.0, 5.0 * std::sqrt(2.0 / n));
  EXPECT_NEAR(beyond_two, 0.0455003, 5.0 * std::sqrt(0.0455 * 0.9545 / n));
}

TEST(Initialize, DrawsUniformValuesOfTheGivenMoments) {
  const Parameter parameter =
      MakeParameter("a", {1 << 16}, {Initializer::Kind::kUniform, 0.5F, 2.0F / std::sqrt(3.0F)});
  double mean = 0;
  double square = 0;
  double largest = 0;
  for (const float value : InitialValues(parameter, 3, 0, parameter.elements())) {
    const double z = value - 0.5;
    mean += z * 0x1p-16;
    square += z * z * 0x1p-16;
    largest = std::max(largest, std::abs(z));
  }
  // Five standard errors of each estimate.
  EXPECT_NEAR(mean, 0.0, 5.0 * std::sqrt(4.0 / 3.0) * 0x1p-8);
  EXPECT_NEAR(square, 4.0 / 3.0, 5.0 * std::sqrt(64.0 / 45.0) * 0x1p-8);
  EXPECT_LE(largest, 2.0);
  EXPECT_GT(largest, 1.99);
}

TEST(Initialize, FillsConstants) {
  const Parameter norm = MakeParameter("norm", {33}, {Initializer::Kind::kConstant, 1.0F, 0.0F});
  EXPECT_THAT(InitialValues(norm, 9, 4, 20), Each(1.0F));
}

}  // namespace
}  // namespace weft
