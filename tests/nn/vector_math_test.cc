#include "src/nn/kernels/vector_math.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Exp, IsWithinOneUnitInTheLastPlace) {
  double worst = 0.0;
  for (float x = -87.3F; x < 88.3F; x += 1.7e-4F) {
    const double exact = std::exp(static_cast<double>(x));
    int exponent;
    std::frexp(exact, &exponent);
    worst = std::max(worst, std::abs(Exp(x) - exact) / std::ldexp(1.0, exponent - 24));
  }
  EXPECT_LE(worst, 1.0);
}

TEST(Exp, IsExactAtZeroAndZeroForVeryNegativeInputs) {
  EXPECT_EQ(Exp(0.0F), 1.0F);
  EXPECT_EQ(Exp(-88.0F), 0.0F);
  EXPECT_EQ(Exp(-std::numeric_limits<float>::infinity()), 0.0F);
}

TEST(Exp, GivesTheSameBitsInALoopAndInASingleCall) {
  std::vector<float> x(67);
  for (size_t i = 0; i < x.size(); ++i) x[i] = -0.37F * static_cast<float>(i);
  std::vector<float> in_loop(x.size());
  for (size_t i = 0; i < x.size(); ++i) in_loop[i] = Exp(x[i]);
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float alone = x[i];
    EXPECT_EQ(in_loop[i], Exp(alone));
  }
}

TEST(Lanes, SumAndMaximumCoverEveryLength) {
  for (int64_t count = 0; count < 100; ++count) {
    EXPECT_EQ(LaneSum(count, [](int64_t i) { return static_cast<float>(i + 1); }),
              static_cast<float>(count * (count + 1) / 2));
    const auto rises = [](int64_t i) { return static_cast<float>(i); };
    const auto falls = [](int64_t i) { return static_cast<float>(-i); };
    EXPECT_EQ(LaneMax(count, -7.0F, rises), count == 0 ? -7.0F : static_cast<float>(count - 1));
    EXPECT_EQ(LaneMax(count, -7.0F, falls), count == 0 ? -7.0F : 0.0F);
  }
}

}  // namespace
}  // namespace weft
