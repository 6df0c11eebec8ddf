#include "context_parallel/layouts/lse_merge.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "weft/core/tensor.h"

namespace weft::testing {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Partial result of one query and one head.
struct Partial {
  std::vector<float> out;
  float lse;
};

Partial Merge(Partial side, Partial block) {
  const auto dim = static_cast<int64_t>(side.out.size());
  LseMerge(TensorView::Contiguous(side.out.data(), DType::kF32, {1, 1, 1, dim}),
           TensorView::Contiguous(&side.lse, DType::kF32, {1, 1, 1}),
           TensorView::Contiguous(block.out.data(), DType::kF32, {1, 1, 1, dim}),
           TensorView::Contiguous(&block.lse, DType::kF32, {1, 1, 1}));
  return side;
}

TEST(LseMerge, WeightsSidesByTheirLse) {
  for (const float distance : {0.0F, 0.5F, 3.0F, -3.0F, 30.0F, -30.0F}) {
    const Partial merged = Merge({{1, 2}, 10}, {{3, -5}, 10 + distance});
    const double weight = 1 / (1 + std::exp(-double{distance}));
    EXPECT_NEAR(merged.out[0], (1 - weight) * 1 + weight * 3, 1e-6);
    EXPECT_NEAR(merged.out[1], (1 - weight) * 2 + weight * -5, 2e-6);
    EXPECT_NEAR(merged.lse, 10 + std::log1p(std::exp(double{distance})), 4e-6);
  }
}

TEST(LseMerge, IsExactIfTheLseOfTheSidesAreFarApart) {
  for (const float far : {200.0F, 1e5F, 3e38F}) {
    const Partial above = Merge({{1}, -far}, {{2}, far});
    EXPECT_EQ(above.out[0], 2);
    EXPECT_EQ(above.lse, far);
    const Partial below = Merge({{1}, far}, {{2}, -far});
    EXPECT_EQ(below.out[0], 1);
    EXPECT_EQ(below.lse, far);
  }
}

TEST(LseMerge, IgnoresTheOutputOfASideWithoutKeys) {
  const Partial kept = Merge({{1, 2}, 3}, {{kNan, kNan}, kNoKeys});
  EXPECT_EQ(kept.out, (std::vector<float>{1, 2}));
  EXPECT_EQ(kept.lse, 3);
  const Partial taken = Merge({{kNan, kNan}, kNoKeys}, {{1, 2}, 3});
  EXPECT_EQ(taken.out, (std::vector<float>{1, 2}));
  EXPECT_EQ(taken.lse, 3);
}

TEST(LseMerge, GivesZeroIfNeitherSideHasKeys) {
  const Partial nothing = Merge({{kNan, 5}, kNoKeys}, {{kNan, 7}, kNoKeys});
  EXPECT_EQ(nothing.out, (std::vector<float>{0, 0}));
  EXPECT_EQ(nothing.lse, kNoKeys);
}

TEST(LseMerge, FindsItsRowsUnderAnyStrides) {
  constexpr int64_t kBatch = 2, kQueries = 3, kHeads = 4, kDim = 5;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto draw = [&](const TensorView& view) {
    std::vector<float> values(static_cast<size_t>(view.elements()));
    for (float& value : values) value = normal(random);
    return values;
  };
  // Outputs with heads before tokens in memory, and an LSE with tokens outermost.
  const auto strided_out = [](void* data) {
    return TensorView::Contiguous(data, DType::kF32, {kBatch, kHeads, kQueries, kDim}).Permute({0, 2, 1, 3});
  };
  const auto strided_lse = [](void* data) {
    return TensorView::Contiguous(data, DType::kF32, {kQueries, kBatch, kHeads}).Permute({1, 2, 0});
  };
  const auto plain_out = [](void* data) {
    return TensorView::Contiguous(data, DType::kF32, {kBatch, kQueries, kHeads, kDim});
  };
  const auto plain_lse = [](void* data) {
    return TensorView::Contiguous(data, DType::kF32, {kBatch, kHeads, kQueries});
  };
  std::vector<float> out = draw(strided_out(nullptr));
  std::vector<float> lse = draw(strided_lse(nullptr));
  std::vector<float> block_out = draw(plain_out(nullptr));
  std::vector<float> block_lse = draw(plain_lse(nullptr));
  const std::vector<float> out_before = out;
  const std::vector<float> lse_before = lse;
  LseMerge(strided_out(out.data()), strided_lse(lse.data()), plain_out(block_out.data()),
           plain_lse(block_lse.data()));
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t q = 0; q < kQueries; ++q) {
        const auto at = static_cast<size_t>((q * kBatch + b) * kHeads + h);
        const auto block_at = static_cast<size_t>((b * kHeads + h) * kQueries + q);
        const auto row = static_cast<ptrdiff_t>(((b * kHeads + h) * kQueries + q) * kDim);
        const auto block_row = static_cast<ptrdiff_t>(((b * kQueries + q) * kHeads + h) * kDim);
        const Partial expected = Merge(
            {{out_before.begin() + row, out_before.begin() + row + kDim}, lse_before[at]},
            {{block_out.begin() + block_row, block_out.begin() + block_row + kDim}, block_lse[block_at]});
        EXPECT_EQ(lse[at], expected.lse);
        for (int64_t i = 0; i < kDim; ++i)
          EXPECT_EQ(out[static_cast<size_t>(row + i)], expected.out[static_cast<size_t>(i)]);
      }
    }
  }
}

}  // namespace
}  // namespace weft::testing
