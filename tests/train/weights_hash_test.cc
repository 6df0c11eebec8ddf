#include "weft/train/weights_hash.h"

#include <vector>

#include <gtest/gtest.h>

#include "weft/core/parallel.h"

namespace weft {
namespace {

std::vector<float> Values(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(i * 7919 % 1000) / 8);
  }
  return values;
}

TEST(WeightsHash, IsTheSameForEveryDivisionOfAParameter) {
  const std::vector<float> values = Values(100'000);
  const uint64_t whole = DigestOfElements(0, values);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{999}, size_t{50'001}, values.size()}) {
    const absl::Span<const float> all(values);
    EXPECT_EQ(DigestOfElements(static_cast<int64_t>(cut), all.subspan(cut)) +
                  DigestOfElements(0, all.subspan(0, cut)),
              whole);
  }
}

TEST(WeightsHash, IsTheSameForEveryThreadCount) {
  const std::vector<float> values = Values(100'000);
  const int before = ThreadCount();
  SetThreadCount(1);
  const uint64_t one = DigestOfElements(0, values);
  SetThreadCount(3);
  EXPECT_EQ(DigestOfElements(0, values), one);
  SetThreadCount(before);
}

TEST(WeightsHash, DependsOnEveryBitAndPosition) {
  const uint64_t base = DigestOfElements(0, {1.0F, 2.0F, 0.0F});
  EXPECT_NE(DigestOfElements(0, {2.0F, 1.0F, 0.0F}), base);
  EXPECT_NE(DigestOfElements(0, {1.0F, 2.0F, -0.0F}), base);
  EXPECT_NE(DigestOfElements(1, {1.0F, 2.0F, 0.0F}), base);
}

TEST(WeightsHash, DependsOnNames) {
  EXPECT_NE(WeightsHash({{"a", 1}, {"b", 2}}), WeightsHash({{"a", 2}, {"b", 1}}));
  EXPECT_NE(WeightsHash({{"a", 1}}), WeightsHash({{"b", 1}}));
  EXPECT_EQ(WeightsHash({{"b", 2}, {"a", 1}}), WeightsHash({{"a", 1}, {"b", 2}}));
}

}  // namespace
}  // namespace weft
