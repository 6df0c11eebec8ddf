#include "context_parallel/layouts/query_tails.h"

#include <set>

#include <gtest/gtest.h>

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
  EXPECT_THAT(tails.received_runs(), ElementsAre(TokenRun{0, 10, 2}));
}

TEST(QueryTails, AreEmptyOnTheMiddleOfAnOddNumberOfRanks) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(9, 3));
  const QueryTails tails(*layout.Parts(1));
  EXPECT_EQ(tails.mirror(), 1);
  EXPECT_EQ(tails.kept(), 3);
  EXPECT_EQ(tails.sent(), 0);
  EXPECT_EQ(tails.received(), 0);
}

TEST(QueryTails, GiveEveryQueryToOneRank) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const int64_t tokens : {1, 5, 16, 67}) {
      ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(tokens, ranks));
      std::set<int64_t> computed;
      for (int rank = 0; rank < ranks; ++rank) {
        const QueryTails tails(*layout.Parts(rank));
        EXPECT_EQ(tails.kept() + tails.sent(), layout.TokensOf(rank));
        EXPECT_EQ(QueryTails(*layout.Parts(tails.mirror())).sent(), tails.received());
        for (const TokenRuns& runs : {tails.kept_runs(), tails.received_runs()}) {
          for (const int64_t position : Positions(runs)) EXPECT_TRUE(computed.insert(position).second);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(computed.size()), tokens);
    }
  }
}

TEST(SliceRuns, CutsRunsAnywhere) {
  const TokenRuns runs = {{0, 5, 3}, {2, 0, 0}, {1, 0, 4}};
  EXPECT_THAT(SliceRuns(runs, 0, 7), ElementsAre(TokenRun{0, 5, 3}, TokenRun{1, 0, 4}));
  EXPECT_THAT(SliceRuns(runs, 2, 3), ElementsAre(TokenRun{0, 7, 1}, TokenRun{1, 0, 2}));
  EXPECT_THAT(SliceRuns(runs, 4, 0), ElementsAre());
}

}  // namespace
}  // namespace weft::testing
