#include "weft/comm/part_ranges.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using Ranges = std::vector<ElementRange>;

std::shared_ptr<const PartRanges> Make(const std::vector<Ranges>& parts) {
  return PartRanges::Make(parts).value();
}

TEST(PartRanges, CountsElementsInTheOrderOfTheList) {
  const auto parts = Make({{{10, 3}, {0, 2}}, {}, {{5, 1}}});
  EXPECT_EQ(parts->ranks(), 3);
  EXPECT_THAT(parts->counts(), ::testing::ElementsAre(5, 0, 1));
  EXPECT_EQ(parts->total(), 6);
  EXPECT_EQ(parts->extent(), 13);
  ASSERT_EQ(parts->part(0).size(), 2U);
  EXPECT_EQ(parts->part(0)[1].range, (ElementRange{0, 2}));
  EXPECT_EQ(parts->part(0)[1].place, 3);
}

TEST(PartRanges, LeavesOutEmptyRangesAndJoinsAdjacentOnes) {
  const auto parts = Make({{{4, 2}, {9, 0}, {6, 3}, {20, 1}}});
  ASSERT_EQ(parts->part(0).size(), 2U);
  EXPECT_EQ(parts->part(0)[0].range, (ElementRange{4, 5}));
  EXPECT_EQ(parts->part(0)[1].place, 5);
  EXPECT_EQ(parts->hash(), Make({{{4, 5}, {20, 1}}})->hash());
}

TEST(PartRanges, AreCutAtTheBoundsOfViews) {
  const std::vector<Ranges> parts = {{{0, 4}, {4, 6}}, {{12, 8}}};
  const auto cut = PartRanges::Make(parts, {0, 4, 7, 11, 20}).value();
  ASSERT_EQ(cut->part(0).size(), 3U);
  EXPECT_EQ(cut->part(0)[0].range, (ElementRange{0, 4}));
  EXPECT_EQ(cut->part(0)[1].range, (ElementRange{4, 3}));
  EXPECT_EQ(cut->part(0)[2].range, (ElementRange{7, 3}));
  EXPECT_EQ(cut->part(0)[2].place, 7);
  ASSERT_EQ(cut->part(1).size(), 1U);
  EXPECT_EQ(cut->part(1)[0].range, (ElementRange{12, 8}));
  EXPECT_EQ(cut->counts(), Make(parts)->counts());
}

TEST(PartRanges, HashesDifferForDifferentOwnersAndPlaces) {
  const uint64_t hash = Make({{{0, 2}}, {{2, 2}}})->hash();
  EXPECT_NE(hash, Make({{{2, 2}}, {{0, 2}}})->hash());
  EXPECT_NE(hash, Make({{{0, 2}}, {{3, 2}}})->hash());
  EXPECT_NE(hash, Make({{{0, 2}, {2, 2}}, {}})->hash());
}

TEST(PartRanges, RefuseNegativeAndOverlappingRanges) {
  const auto refuses = [](const std::vector<Ranges>& parts, const char* message) {
    EXPECT_THAT(PartRanges::Make(parts),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(message)));
  };
  refuses({{}, {{-1, 2}}}, "rank 1 begins at -1");
  refuses({{{0, -2}}}, "has -2 elements");
  refuses({{{0, 4}}, {{3, 2}}}, "[0, 4) of rank 0 and [3, 5) of rank 1 overlap");
  refuses({{{5, 2}, {6, 1}}}, "overlap");
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  refuses({{{1, kMax}}}, "more than 64 bits count");
  refuses({{{0, kMax}}, {{0, 1}}}, "more than 64 bits count");
  refuses({{{0, kMax - 1}, {kMax - 1, 1}, {0, 1}}}, "more than 64 bits count");
}

}  // namespace
}  // namespace weft::testing
