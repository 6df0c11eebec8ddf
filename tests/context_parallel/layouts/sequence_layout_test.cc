#include "weft/context_parallel/sequence_layout.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/layout_tokens.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Lengths = std::vector<int64_t>;

std::vector<int64_t> TokensByRank(const SequenceLayout& layout) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < layout.ranks(); ++rank) counts.push_back(layout.TokensOf(rank));
  return counts;
}

// Reference: the tokens of each rank, one by one. Splits documents over outer ranks, then the pack over
// inner.
std::vector<std::vector<int64_t>> ReferenceTokens(const Lengths& lengths, const SequenceSplit& split) {
  const auto cut = [](const std::vector<int64_t>& tokens, int parts) {
    std::vector<std::vector<int64_t>> result(static_cast<size_t>(parts));
    size_t at = 0;
    for (size_t part = 0; part < result.size(); ++part) {
      const size_t count = tokens.size() / result.size() + (part < tokens.size() % result.size() ? 1 : 0);
      for (size_t i = 0; i < count; ++i) result[part].push_back(tokens[at++]);
    }
    return result;
  };
  std::vector<std::vector<int64_t>> packs(static_cast<size_t>(split.outer));
  int64_t start = 0;
  for (const int64_t length : lengths) {
    std::vector<int64_t> document(static_cast<size_t>(length));
    std::iota(document.begin(), document.end(), start);
    start += length;
    const bool head_tail = split.order == SequenceOrder::kHeadTail;
    const auto chunks = cut(document, head_tail ? 2 * split.outer : split.outer);
    for (size_t outer = 0; outer < packs.size(); ++outer) {
      auto& pack = packs[outer];
      pack.insert(pack.end(), chunks[outer].begin(), chunks[outer].end());
      if (!head_tail) continue;
      const auto& tail = chunks[chunks.size() - 1 - outer];
      pack.insert(pack.end(), tail.begin(), tail.end());
    }
  }
  std::vector<std::vector<int64_t>> ranks;
  for (const auto& pack : packs) {
    for (auto& part : cut(pack, split.inner)) ranks.push_back(std::move(part));
  }
  return ranks;
}

void ExpectReference(const Lengths& lengths, const SequenceSplit& split) {
  SCOPED_TRACE(absl::StrCat("documents ", absl::StrJoin(lengths, " "), " over ", split.outer, " x ",
                            split.inner, split.order == SequenceOrder::kHeadTail ? " head-tail" : ""));
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Create(lengths, split));
  const auto reference = ReferenceTokens(lengths, split);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  ASSERT_EQ(layout.tokens(), tokens);
  std::vector<int64_t> starts = {0};
  for (const int64_t length : lengths) starts.push_back(starts.back() + length);
  std::vector<int64_t> in_rank_order;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const auto& expected = reference[static_cast<size_t>(rank)];
    for (const TokenRange& range : layout.RangesOf(rank)) ASSERT_GT(range.count, 0);
    std::vector<int64_t> by_runs;
    for (const TokenRun& run : layout.RunsOf(rank)) {
      ASSERT_GT(run.count, 0);
      const int64_t start = starts[static_cast<size_t>(run.document)];
      ASSERT_LE(start + run.position + run.count, starts[static_cast<size_t>(run.document) + 1]);
      for (int64_t i = 0; i < run.count; ++i) by_runs.push_back(start + run.position + i);
    }
    ASSERT_EQ(TokensOfRank(layout, rank), expected);
    ASSERT_EQ(by_runs, expected);
    ASSERT_EQ(layout.TokensOf(rank), static_cast<int64_t>(expected.size()));
    in_rank_order.insert(in_rank_order.end(), expected.begin(), expected.end());
  }
  ASSERT_EQ(layout.is_in_order(), std::is_sorted(in_rank_order.begin(), in_rank_order.end()));
}

TEST(EvenPart, GivesRemaindersToTheFirstPartsAndIsInvertible) {
  for (const int64_t tokens : {0, 1, 2, 7, 64, 101}) {
    for (const int64_t parts : {1, 2, 3, 7, 64, 128}) {
      int64_t at = 0;
      for (int64_t index = 0; index < parts; ++index) {
        const TokenRange part = EvenPart(tokens, parts, index);
        ASSERT_EQ(part.begin, at);
        ASSERT_EQ(part.count, tokens / parts + (index < tokens % parts ? 1 : 0));
        for (; at < part.end(); ++at) ASSERT_EQ(EvenPartIndex(tokens, parts, at), index);
      }
      ASSERT_EQ(at, tokens);
    }
  }
}

TEST(SequenceLayout, SplitsContiguouslyWithTheRemainderAtTheFirstRanks) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(10, 4));
  EXPECT_THAT(TokensByRank(layout), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(layout.RangesOf(2), ElementsAre(TokenRange{6, 2}));
}

TEST(SequenceLayout, SplitsInTwoLevelsForHybrids) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Create({10}, {.outer = 2, .inner = 2}));
  EXPECT_THAT(TokensByRank(layout), ElementsAre(3, 2, 3, 2));
}

TEST(SequenceLayout, PairsAHeadWithATail) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::HeadTail(16, 4));
  EXPECT_THAT(layout.RangesOf(0), ElementsAre(TokenRange{0, 2}, TokenRange{14, 2}));
  EXPECT_THAT(layout.RangesOf(2), ElementsAre(TokenRange{4, 2}, TokenRange{10, 2}));
  EXPECT_THAT(layout.RangesOf(3), ElementsAre(TokenRange{6, 4})) << "the middle chunks are adjacent";
}

TEST(SequenceLayout, FollowsTheClosedFormOfHeadTailChunks) {
  for (const int ranks : {1, 2, 3, 8, 64}) {
    constexpr int64_t kChunk = 3;
    ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::HeadTail(kChunk * 2 * ranks, ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<int64_t> tokens = TokensOfRank(layout, rank);
      ASSERT_EQ(tokens.size(), 2 * kChunk);
      EXPECT_EQ(tokens.front(), rank * kChunk);
      EXPECT_EQ(tokens[kChunk], (2 * ranks - 1 - rank) * kChunk);
    }
  }
}

TEST(SequenceLayout, LeavesRanksEmptyIfDocumentsAreShort) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Create({1, 5, 2}, {.outer = 4}));
  EXPECT_THAT(TokensByRank(layout), ElementsAre(4, 2, 1, 1));
  EXPECT_THAT(layout.RunsOf(0), ElementsAre(TokenRun{0, 0, 1}, TokenRun{1, 0, 2}, TokenRun{2, 0, 1}));
  EXPECT_THAT(layout.RunsOf(3), ElementsAre(TokenRun{1, 4, 1}));
  ASSERT_OK_AND_ASSIGN(const SequenceLayout nothing, SequenceLayout::Create({1, 1}, {.outer = 3}));
  EXPECT_THAT(TokensByRank(nothing), ElementsAre(2, 0, 0));
  EXPECT_TRUE(nothing.RunsOf(2).empty());
}

TEST(SequenceLayout, SplitsAPackAsAWholeOverInnerRanks) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Create({3, 5}, {.inner = 2}));
  EXPECT_THAT(layout.RangesOf(0), ElementsAre(TokenRange{0, 4}));
  EXPECT_THAT(layout.RunsOf(0), ElementsAre(TokenRun{0, 0, 3}, TokenRun{1, 0, 1}));
  EXPECT_THAT(layout.RunsOf(1), ElementsAre(TokenRun{1, 1, 4}));
}

TEST(SequenceLayout, MatchesTheReferenceUpToSixtyFourRanks) {
  for (int outer = 1; outer <= 64; ++outer) {
    for (int inner = 1; outer * inner <= 64; ++inner) {
      for (const SequenceOrder order : {SequenceOrder::kContiguous, SequenceOrder::kHeadTail}) {
        const int64_t ranks = int64_t{outer} * inner;
        for (const Lengths& lengths :
             {Lengths{1}, Lengths{2 * ranks + 1}, Lengths{3, 1, ranks + 2}, Lengths{2 * ranks, 2 * ranks}}) {
          ExpectReference(lengths, {.outer = outer, .inner = inner, .order = order});
        }
      }
    }
  }
}

TEST(SequenceLayout, MatchesTheReferenceForRandomPacks) {
  std::mt19937 random(5);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    Lengths lengths(static_cast<size_t>(draw(1, 8)));
    for (int64_t& length : lengths) length = draw(1, 40);
    const int outer = static_cast<int>(draw(1, 8));
    ExpectReference(lengths,
                    {.outer = outer,
                     .inner = static_cast<int>(draw(1, 8)),
                     .order = round % 2 == 0 ? SequenceOrder::kContiguous : SequenceOrder::kHeadTail});
  }
}

TEST(SequenceLayout, GivesEveryRankTheRunsOfAllRanks) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::HeadTail(9, 2));
  const auto parts = layout.Parts(1);
  ASSERT_EQ(parts->ranks(), 2);
  EXPECT_EQ(parts->parts[0], layout.RunsOf(0));
  EXPECT_EQ(parts->runs(), layout.RunsOf(1));
}

TEST(SequenceLayout, RefusesEmptyLevelsAndDocuments) {
  EXPECT_THAT(SequenceLayout::Contiguous(8, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 x 1 ranks")));
  EXPECT_THAT(SequenceLayout::Create({8}, {.outer = 2, .inner = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 x -1 ranks")));
  EXPECT_THAT(SequenceLayout::Create({}, {.outer = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without documents")));
  EXPECT_THAT(SequenceLayout::Create({4, 0, 3}, {.outer = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("document 1 of 3 has 0 tokens")));
}

TEST(SequenceLayout, IsInOrderIfRankOrderIsThatOfTheSequence) {
  const auto is_in_order = [](std::vector<int64_t> documents, int ranks, SequenceOrder order) {
    const auto layout = SequenceLayout::Create(documents, {.outer = ranks, .order = order});
    EXPECT_OK(layout.status());
    return layout->is_in_order();
  };
  EXPECT_TRUE(is_in_order({10}, 3, SequenceOrder::kContiguous));
  EXPECT_TRUE(is_in_order({2}, 3, SequenceOrder::kContiguous));
  EXPECT_TRUE(is_in_order({10, 5}, 1, SequenceOrder::kHeadTail));
  EXPECT_FALSE(is_in_order({10, 5}, 3, SequenceOrder::kContiguous));
  EXPECT_FALSE(is_in_order({10}, 3, SequenceOrder::kHeadTail));
}

}  // namespace
}  // namespace weft::testing
