#include "weft/nn/attention_mask.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/attention_oracle.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<AttentionMask> kMasks = {
    {false, std::nullopt}, {true, std::nullopt}, {true, 1}, {true, 5}, {true, 130}};

int64_t CountPairs(const AttentionMask& mask, const TokenRuns& queries, const TokenRuns& keys) {
  int64_t pairs = 0;
  for (const TokenRun& q : queries) {
    for (const TokenRun& k : keys) {
      for (int64_t i = q.position; i < q.position + q.count; ++i) {
        for (int64_t j = k.position; j < k.position + k.count; ++j) {
          pairs += OracleIsVisible(mask, q.document, i, k.document, j) ? 1 : 0;
        }
      }
    }
  }
  return pairs;
}

TEST(VisiblePairs, CountsThePairsThatTheMaskAllows) {
  for (const AttentionMask& mask : kMasks) {
    for (const int64_t queries : {0, 1, 4, 9}) {
      for (const int64_t keys : {0, 1, 4, 9}) {
        for (int64_t shift = -12; shift <= 12; ++shift) {
          const TokenRun q = {3, 20 + shift, queries};
          const TokenRun k = {3, 20, keys};
          ASSERT_EQ(VisiblePairs(mask, q, k), CountPairs(mask, {q}, {k}))
              << queries << " queries at " << shift << ", " << keys << " keys";
        }
      }
    }
  }
}

TEST(VisiblePairs, CountsNoPairAcrossDocuments) {
  TokenRuns queries = {{1, 0, 5}, {2, 3, 4}, {1, 9, 2}, {4, 0, 3}};
  TokenRuns keys = {{2, 0, 7}, {1, 4, 6}, {3, 0, 8}};
  for (const int64_t documents : {0, 30}) {  // Few runs and many.
    for (int64_t i = 0; i < documents; ++i) {
      queries.push_back({i % 17, i, 3});
      keys.push_back({i % 11, i % 5, 6});
    }
    for (const AttentionMask& mask : kMasks) {
      EXPECT_EQ(VisiblePairs(mask, queries, keys), CountPairs(mask, queries, keys)) << documents;
    }
  }
}

// With 2^20 tokens, a loop over pairs would take hours, and 32-bit counts would overflow.
TEST(VisiblePairs, NeitherLoopsNorOverflowsOnAMillionTokens) {
  const int64_t tokens = int64_t{1} << 20;
  EXPECT_EQ(VisiblePairs({}, WholeSequence(tokens), WholeSequence(tokens)), tokens * (tokens + 1) / 2);
  EXPECT_EQ(VisiblePairs({true, 10}, WholeSequence(tokens), WholeSequence(tokens)), 11 * tokens - 55);
}

TEST(AttentionMask, RejectsTooFewKeysBeforeTheQuery) {
  EXPECT_OK(Validate({true, 1}));
  EXPECT_OK(Validate({false, std::nullopt}));
  EXPECT_THAT(Validate({true, 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keys_before is 0")));
  EXPECT_THAT(Validate({false, 4}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without a causal mask")));
}

TEST(TokenRuns, GivePositionsInTokenOrder) {
  const TokenRuns runs = {{0, 4, 2}, {1, 0, 0}, {1, 2, 3}};
  EXPECT_EQ(TokenCount(runs), 5);
  EXPECT_THAT(Positions(runs), ElementsAre(4, 5, 2, 3, 4));
  EXPECT_EQ(PositionEnd(runs), 6);
  EXPECT_EQ(PositionEnd({{0, 100, 0}}), 0);
  EXPECT_THAT(Positions(WholeSequence(3)), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace weft::testing
