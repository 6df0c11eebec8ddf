#include "weft/train/batch_order.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

std::vector<int64_t> Drawn(const EpochPermutation& permutation, int64_t count) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(permutation(i));
  }
  return values;
}

std::vector<int64_t> Identity(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(EpochPermutation, ContainsEveryElementOnce) {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1023, 1024, 1025, 5000}) {
    std::vector<int64_t> values = Drawn(EpochPermutation(7, 3, count), count);
    std::sort(values.begin(), values.end());
    EXPECT_EQ(values, Identity(count)) << count;
  }
}

TEST(EpochPermutation, DependsOnSeedAndEpoch) {
  const auto base = Drawn(EpochPermutation(0, 0, 1000), 1000);
  EXPECT_EQ(base, Drawn(EpochPermutation(0, 0, 1000), 1000));
  EXPECT_NE(base, Drawn(EpochPermutation(1, 0, 1000), 1000));
  EXPECT_NE(base, Drawn(EpochPermutation(0, 1, 1000), 1000));
  EXPECT_NE(Drawn(EpochPermutation(1, 0, 1000), 1000), Drawn(EpochPermutation(0, 1, 1000), 1000));
}

// In a random permutation each of n elements stays in place with probability 1/n, so about one does
// (Poisson). The same holds for pairs of neighbors.
TEST(EpochPermutation, KeepsHardlyAnyElementOrPairInPlace) {
  constexpr int64_t kCount = 10'000;
  const auto values = Drawn(EpochPermutation(5, 0, kCount), kCount);
  int64_t in_place = 0;
  int64_t neighbors = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    in_place += values[i] == i ? 1 : 0;
    neighbors += i > 0 && values[i] == values[i - 1] + 1 ? 1 : 0;
  }
  EXPECT_LT(in_place, 10);
  EXPECT_LT(neighbors, 10);
}

TEST(EpochPermutation, WorksOnRangesTooLargeForATable) {
  constexpr int64_t kCount = int64_t{1} << 40;
  const EpochPermutation permutation(1, 1, kCount - 1);
  for (const int64_t position : {int64_t{0}, int64_t{1}, kCount / 2, kCount - 2}) {
    EXPECT_GE(permutation(position), 0);
    EXPECT_LT(permutation(position), kCount - 1);
  }
}

TEST(BatchShape, SplitsABatchIntoMicrobatchesAndTheseIntoRanks) {
  const BatchShape shape = BatchShape::Make(12, 2, 3).value();
  EXPECT_EQ(shape.sequences_per_rank(), 2);
  // Sequence b belongs to microbatch b div (B/A), and in it to rank (b mod (B/A)) div (B/(A D)).
  for (int64_t b = 0; b < 12; ++b) {
    const SequenceRange part = shape.Part(b / 6, b % 6 / 2);
    EXPECT_LE(part.first, b);
    EXPECT_LT(b, part.first + part.count);
  }
}

TEST(BatchShape, NamesTheNearestValidBatchSizes) {
  const absl::Status status = BatchShape::Make(7, 1, 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--batch-size 7 must be a multiple of 4"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("use 4 or 8"));
  EXPECT_THAT(std::string(BatchShape::Make(3, 2, 4).status().message()), HasSubstr("use 8"));
}

TEST(BatchOrder, CountsWindowsWithAllTheirTargets) {
  EXPECT_EQ(BatchOrder::CountWindows(9, 4).value(), 2);
  EXPECT_EQ(BatchOrder::CountWindows(8, 4).value(), 1);
  EXPECT_EQ(BatchOrder::CountWindows(5, 4).value(), 1);
}

TEST(BatchOrder, NamesTheNumberOfTokensThatAreNeeded) {
  for (const int64_t tokens : {0, 1, 4}) {
    const absl::Status status = BatchOrder::CountWindows(tokens, 4).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << tokens;
    EXPECT_THAT(std::string(status.message()), HasSubstr("needs 5"));
  }
}

TEST(BatchOrder, TakesWindowsInOrderWithoutShuffling) {
  const BatchOrder order{3, false, 0};
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < 7; ++i) {
    windows.push_back(order.WindowOf(i));
  }
  EXPECT_THAT(windows, ::testing::ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

TEST(BatchOrder, ShufflesEveryEpochDifferently) {
  const BatchOrder order{50, true, 11};
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  for (int64_t i = 0; i < 50; ++i) {
    first.push_back(order.WindowOf(i));
    second.push_back(order.WindowOf(50 + i));
  }
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, Identity(50));
  EXPECT_EQ(second, Identity(50));
}

}  // namespace
}  // namespace weft
