#include "context_parallel/layouts/ring_plan.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/context_parallel/support/masks.h"
#include "tests/support/status_matchers.h"
#include "weft/context_parallel/sequence_layout.h"

namespace weft::testing {
namespace {

std::vector<TokenRuns> PartsOf(const SequenceLayout& layout) { return layout.Parts(0)->parts; }

TEST(RingPlan, SendsEveryBlockToAllRanksIfAllAttendToIt) {
  for (const int ranks : {1, 2, 3, 8, 64}) {
    ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::HeadTail(4 * ranks, ranks));
    const RingPlan plan(kCausal, PartsOf(layout));
    EXPECT_EQ(plan.hops(), ranks - 1);
    for (int owner = 0; owner < ranks; ++owner) {
      for (int distance = 1; distance < ranks; ++distance) {
        EXPECT_TRUE(plan.Attends(owner, distance));
        EXPECT_TRUE(plan.Reaches(owner, distance));
        EXPECT_EQ(plan.PassesGradientsOn(owner, distance), distance < ranks - 1);
        EXPECT_EQ(plan.ReturnsGradients(owner, distance), distance == ranks - 1);
      }
    }
  }
}

TEST(RingPlan, SendsNoBlockFromTheLastRankToTheFirstUnderACausalMask) {
  constexpr int kRanks = 5;
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(20, kRanks));
  const RingPlan plan(kCausal, PartsOf(layout));
  for (int owner = 0; owner < kRanks; ++owner) {
    for (int distance = 1; distance < kRanks; ++distance) {
      EXPECT_EQ(plan.Reaches(owner, distance), owner + distance < kRanks);
    }
    EXPECT_EQ(plan.ReturnsGradients(owner, kRanks - 1 - owner), owner != kRanks - 1);
  }
}

TEST(RingPlan, PassesBlocksThroughRanksThatDoNotAttendToThem) {
  // One document is on ranks 0 and 2, another on rank 1.
  const std::vector<TokenRuns> parts = {{{0, 0, 4}}, {{1, 0, 4}}, {{0, 4, 4}}};
  const RingPlan plan(kCausal, parts);
  EXPECT_FALSE(plan.Attends(0, 1));
  EXPECT_TRUE(plan.Attends(0, 2));
  EXPECT_TRUE(plan.Reaches(0, 1));
  EXPECT_TRUE(plan.Reaches(0, 2));
  EXPECT_FALSE(plan.PassesGradientsOn(0, 1))
      << "rank 2 is the first remote rank that computes gradients of the block";
  EXPECT_FALSE(plan.SendsAnyGradients(1));
  EXPECT_TRUE(plan.ReturnsGradients(0, 2));
  EXPECT_FALSE(plan.Reaches(1, 1));
  EXPECT_FALSE(plan.Reaches(2, 1));
}

TEST(RingPlan, MakesNoHopsIfNoRankNeedsABlock) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(1, 3));
  const RingPlan plan(kCausal, PartsOf(layout));
  EXPECT_EQ(plan.hops(), 0);
}

// At each distance at most one rank sends the gradients of a block, and exactly one rank returns them to the
// owner.
TEST(RingPlan, HasOneSenderForEveryGradient) {
  for (const std::vector<int64_t>& documents : {std::vector<int64_t>{3, 9, 1, 5}, {1, 1}, {40}}) {
    for (const std::optional<int64_t> keys_before : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
      ASSERT_OK_AND_ASSIGN(
          const SequenceLayout layout,
          SequenceLayout::Create(documents, {.outer = 6, .order = SequenceOrder::kHeadTail}));
      const RingPlan plan({.causal = true, .keys_before = keys_before}, PartsOf(layout));
      for (int owner = 0; owner < 6; ++owner) {
        int returns = 0;
        bool attended = false;
        for (int distance = 1; distance <= plan.hops(); ++distance) {
          attended |= plan.Attends(owner, distance);
          const bool passes_on = plan.PassesGradientsOn(owner, distance);
          const bool is_returned = plan.ReturnsGradients(owner, distance);
          EXPECT_TRUE(plan.Reaches(owner, distance) || !plan.Attends(owner, distance));
          EXPECT_TRUE(attended || !(passes_on || is_returned));
          EXPECT_FALSE(passes_on && is_returned);
          EXPECT_TRUE(plan.SendsAnyGradients(distance) || !(passes_on || is_returned));
          returns += is_returned ? 1 : 0;
        }
        EXPECT_EQ(returns, attended ? 1 : 0);
      }
    }
  }
}

TEST(AttendingQueries, SpanTheRunsThatAttendToAnyKey) {
  const AttentionMask causal{};
  const TokenRuns queries = {{0, 0, 4}, {0, 12, 4}, {1, 0, 2}};
  EXPECT_EQ(AttendingQueries(causal, queries, {{0, 4, 8}}), (TokenRange{4, 4}));
  EXPECT_EQ(AttendingQueries(causal, queries, {{0, 0, 2}, {1, 0, 1}}), (TokenRange{0, 10}));
  EXPECT_EQ(AttendingQueries(causal, queries, {{2, 0, 8}}).count, 0);
}

}  // namespace
}  // namespace weft::testing
