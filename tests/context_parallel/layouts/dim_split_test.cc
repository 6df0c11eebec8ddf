#include "weft/context_parallel/dim_split.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/layout_tokens.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

auto Refused(const auto& text) { return StatusIs(absl::StatusCode::kInvalidArgument, text); }

TEST(EvenSizes, GiveTheRemainderOneEachToTheFirstRanks) {
  EXPECT_THAT(EvenSizes(10, 4), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(EvenSizes(2, 3), ElementsAre(1, 1, 0));
  EXPECT_THAT(EvenSizes(0, 2), ElementsAre(0, 0));
}

TEST(DimSplit, SplitsAWholeEvenlyOrBySizes) {
  ASSERT_OK_AND_ASSIGN(const DimSplit even, DimSplit::OfWhole({2, 7, 3}, -2, 3));
  EXPECT_EQ(even.dim, 1);
  EXPECT_THAT(even.sizes, ElementsAre(3, 2, 2));
  EXPECT_EQ(even.Offset(2), 5);
  EXPECT_EQ(even.PartShape({2, 7, 3}, 1), (Shape{2, 2, 3}));
  EXPECT_EQ(even.WholeShape({2, 2, 3}), (Shape{2, 7, 3}));
  ASSERT_OK_AND_ASSIGN(const DimSplit given, DimSplit::OfWhole({2, 7}, 1, 3, {0, 6, 1}));
  EXPECT_THAT(given.sizes, ElementsAre(0, 6, 1));
}

TEST(DimSplit, DerivesTheWholeFromAPart) {
  ASSERT_OK_AND_ASSIGN(const DimSplit alike, DimSplit::OfPart({4, 3}, 1, 5, 2));
  EXPECT_THAT(alike.sizes, ElementsAre(3, 3, 3, 3, 3));
  ASSERT_OK_AND_ASSIGN(const DimSplit uneven, DimSplit::OfPart({4, 2}, -1, 3, 1, {}, 7));
  EXPECT_THAT(uneven.sizes, ElementsAre(3, 2, 2));
  ASSERT_OK_AND_ASSIGN(const DimSplit given, DimSplit::OfPart({4, 2}, -1, 3, 1, {9, 2, 0}, 11));
  EXPECT_EQ(given.length(), 11);
}

TEST(DimSplit, RefusesSizesThatDoNotFit) {
  EXPECT_THAT(DimSplit::OfWhole({2, 3}, 2, 2).status(),
              Refused(AllOf(HasSubstr("dim 2"), HasSubstr("[2, 3]"), HasSubstr("from -2 to 1"))));
  EXPECT_THAT(DimSplit::OfWhole({2, 3}, -3, 2).status(), Refused(HasSubstr("dim -3")));
  EXPECT_THAT(DimSplit::OfWhole({2, 3}, 1, 2, {1, 1, 1}).status(),
              Refused(HasSubstr("3 sizes for a group of 2 ranks")));
  EXPECT_THAT(DimSplit::OfWhole({2, 3}, 1, 2, {1, 1}).status(), Refused(HasSubstr("add up to 2")));
  EXPECT_THAT(DimSplit::OfWhole({2, 3}, 1, 2, {4, -1}).status(), Refused(HasSubstr("a size of -1")));
  // Rank 0 of three has 3 of 7, not 2. The sizes must add up to the length.
  EXPECT_THAT(DimSplit::OfPart({4, 2}, 1, 3, 0, {}, 7).status(),
              Refused(AllOf(HasSubstr("parts of 3, 2, 2"), HasSubstr("rank 0"), HasSubstr("[4, 2]"))));
  EXPECT_THAT(DimSplit::OfPart({4, 2}, 1, 2, 0, {2, 2}, 5).status(), Refused(HasSubstr("the length of 5")));
  EXPECT_THAT(DimSplit::OfPart({4, 2}, 1, 2, 0, {3, 2}).status(), Refused(HasSubstr("rank 0")));
}

TEST(AllToAllPlan, MovesTheSplitAndBack) {
  ASSERT_OK_AND_ASSIGN(const AllToAllPlan plan,
                       AllToAllPlan::Make({1, 2, 7, 4}, 2, 1, 3, 2, {.gather_length = 8}));
  EXPECT_THAT(plan.scatter.sizes, ElementsAre(3, 2, 2));
  EXPECT_THAT(plan.gather.sizes, ElementsAre(3, 3, 2));
  const AllToAllPlan back = plan.Adjoint();
  EXPECT_EQ(back.scatter.dim, 1);
  EXPECT_EQ(back.gather.dim, 2);
  EXPECT_THAT(back.gather.sizes, ElementsAre(3, 2, 2));
}

TEST(AllToAllPlan, RefusesTheSameDimAndTooFewOrTooMany) {
  EXPECT_THAT(AllToAllPlan::Make({4, 4}, 0, -2, 2, 0).status(), Refused(HasSubstr("same dim, 0 and -2")));
  EXPECT_THAT(AllToAllPlan::Make({4}, 0, 0, 2, 0).status(), Refused(HasSubstr("two to five dims")));
  EXPECT_THAT(AllToAllPlan::Make({1, 1, 1, 1, 1, 1}, 0, 1, 2, 0).status(),
              Refused(HasSubstr("two to five dims")));
}

TEST(PackSplit, PlacesEveryTokenOfEveryDocumentOnce) {
  const std::vector<std::vector<int64_t>> table = {{2, 1, 0}, {1, 0, 3}, {1, 0, 2}};
  ASSERT_OK_AND_ASSIGN(const PackSplit pack, PackSplit::Make({8, 5}, -2, 3, table));
  EXPECT_EQ(pack.documents(), 3);
  EXPECT_THAT(pack.ByRank().sizes, ElementsAre(3, 4, 3));
  const auto pieces = pack.PiecesByRank();
  ASSERT_EQ(pieces.size(), 3);
  std::vector<int> seen(10);
  for (int rank = 0; rank < 3; ++rank) {
    int64_t next = 0;
    for (const PackSplit::Piece& piece : pieces[static_cast<size_t>(rank)]) {
      EXPECT_EQ(piece.part_begin, next);
      next += piece.count;
      for (int64_t i = 0; i < piece.count; ++i) ++seen[static_cast<size_t>(piece.whole_begin + i)];
    }
    EXPECT_EQ(next, pack.ByRank().size(rank));
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 10);
  // Rank 1 starts after rank 0's two tokens of the first document, and at the start of the third.
  EXPECT_EQ(pieces[1][0].whole_begin, 2);
  EXPECT_EQ(pieces[1][1].whole_begin, 5);
}

// Head-tail chunks of packed documents, over two levels of ranks.
TEST(PackSplit, HasTheRangesOfALayout) {
  for (const SequenceOrder order : {SequenceOrder::kContiguous, SequenceOrder::kHeadTail}) {
    for (const std::vector<int64_t>& documents : {std::vector<int64_t>{23}, {1}, {2, 9, 1, 14}}) {
      ASSERT_OK_AND_ASSIGN(const SequenceLayout layout,
                           SequenceLayout::Create(documents, {.outer = 3, .inner = 2, .order = order}));
      const PackSplit pack = PackSplit::Of(layout, 1);
      EXPECT_EQ(pack.ByRank().sizes, DimSplit::ByRank(layout, 1).sizes);
      const auto pieces = pack.PiecesByRank();
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        const std::vector<int64_t> tokens = TokensOfRank(layout, rank);
        for (const PackSplit::Piece& piece : pieces[static_cast<size_t>(rank)]) {
          for (int64_t i = 0; i < piece.count; ++i) {
            EXPECT_EQ(tokens[static_cast<size_t>(piece.part_begin + i)], piece.whole_begin + i);
          }
        }
      }
    }
  }
}

// By definition, a piece begins in the whole after all earlier documents, and after the lower ranks' parts of
// its own document.
TEST(PackSplit, PlacesPiecesByDocumentAndRank) {
  std::mt19937 random(7);
  for (const size_t ranks : {1, 2, 3, 4, 7}) {
    for (const size_t documents : {0, 1, 2, 5, 17}) {
      PackSplit pack{0, std::vector<std::vector<int64_t>>(ranks, std::vector<int64_t>(documents))};
      for (auto& row : pack.sizes) {
        for (int64_t& size : row) size = static_cast<int64_t>(random() % 4);
      }
      std::vector<std::vector<std::array<int64_t, 3>>> expected(ranks);
      std::vector<int64_t> parts(ranks, 0);
      int64_t whole = 0;
      for (size_t document = 0; document < documents; ++document) {
        for (size_t rank = 0; rank < ranks; ++rank) {
          const int64_t count = pack.sizes[rank][document];
          if (count > 0) expected[rank].push_back({parts[rank], whole, count});
          parts[rank] += count;
          whole += count;
        }
      }
      std::vector<std::vector<std::array<int64_t, 3>>> actual;
      for (const auto& pieces : pack.PiecesByRank()) {
        auto& of_rank = actual.emplace_back();
        for (const PackSplit::Piece& piece : pieces) {
          of_rank.push_back({piece.part_begin, piece.whole_begin, piece.count});
        }
      }
      EXPECT_EQ(actual, expected);
    }
  }
}

TEST(PackSplit, RefusesTablesOfTheWrongShape) {
  EXPECT_THAT(PackSplit::Make({8}, 0, 3, {{1}, {1}}).status(), Refused(HasSubstr("2 rows for a group of 3")));
  EXPECT_THAT(PackSplit::Make({8}, 0, 2, {{1, 2}, {1}}).status(),
              Refused(HasSubstr("1 documents for rank 1")));
  EXPECT_THAT(PackSplit::Make({8}, 0, 2, {{1}, {-1}}).status(), Refused(HasSubstr("has -1 for rank 1")));
  EXPECT_THAT(PackSplit::Make({8}, 1, 2, {{1}, {1}}).status(), Refused(HasSubstr("dim 1")));
}

}  // namespace
}  // namespace weft::testing
