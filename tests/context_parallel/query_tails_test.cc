#include "context_parallel/layouts/query_tails.h"

#include <set>

#include <gtest/gtest.h>

#include "context_parallel/layouts/run_slices.h"
#include "tests/support/status_matchers.h"
#include "weft/context_parallel/sequence_layout.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;

TEST(QueryTails, SwapWithTheMirror) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(16, 4));
  const QueryTails tails(*layout.Parts(1));
  EXPECT_EQ(tails.mirror(), 2);
  EXPECT_THAT(tails.kept_runs(), ElementsAre(TokenRun{0, 4, 2}));
  EXPECT_THAT(tails.taken_runs(), ElementsAre(TokenRun{0, 10, 2}));
}

TEST(QueryTails, LeaveTheMiddleOfAnOddNumberAlone) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(9, 3));
  const QueryTails tails(*layout.Parts(1));
  EXPECT_EQ(tails.mirror(), 1);
  EXPECT_EQ(tails.kept(), 3);
  EXPECT_EQ(tails.given(), 0);
  EXPECT_EQ(tails.taken(), 0);
}

TEST(QueryTails, GiveEveryQueryToOneRank) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const int64_t tokens : {1, 5, 16, 67}) {
      ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(tokens, ranks));
      std::set<int64_t> computed;
      for (int rank = 0; rank < ranks; ++rank) {
        const QueryTails tails(*layout.Parts(rank));
        EXPECT_EQ(tails.kept() + tails.given(), layout.TokensOf(rank));
        EXPECT_EQ(QueryTails(*layout.Parts(tails.mirror())).given(), tails.taken());
        for (const TokenRuns& runs : {tails.kept_runs(), tails.taken_runs()}) {
          for (const int64_t position : Positions(runs)) EXPECT_TRUE(computed.insert(position).second);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(computed.size()), tokens);
    }
  }
}

TEST(RunSlices, CutRunsAnywhere) {
  const TokenRuns runs = {{0, 5, 3}, {2, 0, 0}, {1, 0, 4}};
  EXPECT_THAT(SliceRuns(runs, 0, 7), ElementsAre(TokenRun{0, 5, 3}, TokenRun{1, 0, 4}));
  EXPECT_THAT(SliceRuns(runs, 2, 3), ElementsAre(TokenRun{0, 7, 1}, TokenRun{1, 0, 2}));
  EXPECT_THAT(SliceRuns(runs, 4, 0), ElementsAre());
}

TEST(RunSlices, FindTheQueriesThatSeeAnything) {
  const AttentionMask causal{};
  const TokenRuns queries = {{0, 0, 4}, {0, 12, 4}, {1, 0, 2}};
  EXPECT_EQ(SeeingQueries(causal, queries, {{0, 4, 8}}), (TokenRange{4, 4}));
  EXPECT_EQ(SeeingQueries(causal, queries, {{0, 0, 2}, {1, 0, 1}}), (TokenRange{0, 10}));
  EXPECT_EQ(SeeingQueries(causal, queries, {{2, 0, 8}}).count, 0);
}

TEST(RunSlices, JoinNeighboursForTheOuterLevel) {
  const SequenceParts sequence{.parts = {{{0, 0, 1}}, {{0, 1, 1}}, {{0, 2, 1}}, {{0, 3, 1}}}, .own = 2};
  const SequenceParts outer = OuterParts(sequence, 2);
  EXPECT_EQ(outer.own, 1);
  ASSERT_EQ(outer.ranks(), 2);
  EXPECT_THAT(outer.runs(), ElementsAre(TokenRun{0, 2, 1}, TokenRun{0, 3, 1}));
}

}  // namespace
}  // namespace weft::testing
