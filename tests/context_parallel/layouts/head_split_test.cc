#include "context_parallel/layouts/head_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::testing {
namespace {

using ::testing::ElementsAre;

TEST(HeadSplit, GivesEachRankTheKeyHeadsOfItsQueryHeads) {
  const HeadSplit split(8, 4, 2);
  EXPECT_THAT(split.queries(), ElementsAre(HeadRange{0, 4}, HeadRange{4, 4}));
  EXPECT_THAT(split.keys(), ElementsAre(HeadRange{0, 2}, HeadRange{2, 2}));
  EXPECT_FALSE(split.replicates());
}

TEST(HeadSplit, GivesTheFirstRanksOneMoreAndTheLastNone) {
  EXPECT_THAT(HeadSplit(7, 7, 4).queries(),
              ElementsAre(HeadRange{0, 2}, HeadRange{2, 2}, HeadRange{4, 2}, HeadRange{6, 1}));
  const HeadSplit few(2, 1, 3);
  EXPECT_THAT(few.queries(), ElementsAre(HeadRange{0, 1}, HeadRange{1, 1}, HeadRange{2, 0}));
  EXPECT_THAT(few.keys(), ElementsAre(HeadRange{0, 1}, HeadRange{0, 1}, HeadRange{1, 0}));
  EXPECT_TRUE(few.replicates());
}

// The kernel's rule must map every local query head to the KV head that it has in the whole model.
TEST(HeadSplit, GivesTheKernelTheKeyHeadOfEveryQueryHead) {
  for (const int64_t kv_heads : {1, 2, 3, 8}) {
    for (const int64_t group : {1, 2, 3, 7}) {
      for (int ranks = 1; ranks <= 64; ++ranks) {
        const HeadSplit split(kv_heads * group, kv_heads, ranks);
        int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const HeadRange queries = split.queries()[static_cast<size_t>(rank)];
          const HeadRange keys = split.keys()[static_cast<size_t>(rank)];
          ASSERT_EQ(queries.begin, next);
          next = queries.end();
          for (int64_t head = 0; head < queries.count; ++head) {
            const int64_t local = (head + split.HeadOffset(rank)) / group;
            ASSERT_LT(local, keys.count);
            ASSERT_EQ(keys.begin + local, (queries.begin + head) / group);
          }
        }
        ASSERT_EQ(next, kv_heads * group);
      }
    }
  }
}

TEST(OuterParts, JoinTheTokensOfAdjacentRanks) {
  const SequenceParts sequence{.parts = {{{0, 0, 1}}, {{0, 1, 1}}, {{0, 2, 1}}, {{0, 3, 1}}}, .own = 2};
  const SequenceParts outer = OuterParts(sequence, 2);
  EXPECT_EQ(outer.own, 1);
  ASSERT_EQ(outer.ranks(), 2);
  EXPECT_THAT(outer.runs(), ElementsAre(TokenRun{0, 2, 1}, TokenRun{0, 3, 1}));
}

}  // namespace
}  // namespace weft::testing
