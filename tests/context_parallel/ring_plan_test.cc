#include "context_parallel/layouts/ring_plan.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/context_parallel/sequence_layout.h"

namespace weft::testing {
namespace {

constexpr AttentionMask kCausal{};

std::vector<TokenRuns> PartsOf(const SequenceLayout& layout) { return layout.Parts(0)->parts; }

TEST(RingPlan, SendsEverythingAroundWhereAllSeeAll) {
  for (const int ranks : {1, 2, 3, 8, 64}) {
    ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::HeadTail(4 * ranks, ranks));
    const RingPlan plan(kCausal, PartsOf(layout));
    EXPECT_EQ(plan.hops(), ranks - 1);
    for (int source = 0; source < ranks; ++source) {
      for (int distance = 1; distance < ranks; ++distance) {
        EXPECT_TRUE(plan.Sees(source, distance));
        EXPECT_TRUE(plan.Travels(source, distance));
        EXPECT_EQ(plan.GradientsTravel(source, distance), distance < ranks - 1);
        EXPECT_EQ(plan.GradientsGoHome(source, distance), distance == ranks - 1);
      }
    }
  }
}

TEST(RingPlan, NeverGoesAroundTheEndOfACausalSequence) {
  constexpr int kRanks = 5;
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(20, kRanks));
  const RingPlan plan(kCausal, PartsOf(layout));
  for (int source = 0; source < kRanks; ++source) {
    for (int distance = 1; distance < kRanks; ++distance) {
      EXPECT_EQ(plan.Travels(source, distance), source + distance < kRanks);
    }
    EXPECT_EQ(plan.GradientsGoHome(source, kRanks - 1 - source), source != kRanks - 1);
  }
}

TEST(RingPlan, PassesOnWhatARankInBetweenDoesNotSee) {
  // One document is on ranks 0 and 2, another on rank 1.
  const std::vector<TokenRuns> parts = {{{0, 0, 4}}, {{1, 0, 4}}, {{0, 4, 4}}};
  const RingPlan plan(kCausal, parts);
  EXPECT_FALSE(plan.Sees(0, 1));
  EXPECT_TRUE(plan.Sees(0, 2));
  EXPECT_TRUE(plan.Travels(0, 1));
  EXPECT_TRUE(plan.Travels(0, 2));
  EXPECT_FALSE(plan.GradientsTravel(0, 1)) << "there are none before rank 2 has seen the block";
  EXPECT_FALSE(plan.AnyGradientsMove(1));
  EXPECT_TRUE(plan.GradientsGoHome(0, 2));
  EXPECT_FALSE(plan.Travels(1, 1));
  EXPECT_FALSE(plan.Travels(2, 1));
}

TEST(RingPlan, MakesNoHopsWithoutNeed) {
  ASSERT_OK_AND_ASSIGN(const SequenceLayout layout, SequenceLayout::Contiguous(1, 3));
  const RingPlan plan(kCausal, PartsOf(layout));
  EXPECT_EQ(plan.hops(), 0);
}

// Whoever receives gradients at a distance gets them from the one rank that sends, and so for going home.
TEST(RingPlan, NamesOneSenderForEveryGradient) {
  for (const std::vector<int64_t>& documents : {std::vector<int64_t>{3, 9, 1, 5}, {1, 1}, {40}}) {
    for (const std::optional<int64_t> window : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
      ASSERT_OK_AND_ASSIGN(
          const SequenceLayout layout,
          SequenceLayout::Create(documents, {.outer = 6, .order = SequenceOrder::kHeadTail}));
      const RingPlan plan({.causal = true, .window = window}, PartsOf(layout));
      for (int source = 0; source < 6; ++source) {
        int home = 0;
        bool seen = false;
        for (int distance = 1; distance <= plan.hops(); ++distance) {
          seen |= plan.Sees(source, distance);
          const bool on = plan.GradientsTravel(source, distance);
          const bool home_now = plan.GradientsGoHome(source, distance);
          EXPECT_TRUE(plan.Travels(source, distance) || !plan.Sees(source, distance));
          EXPECT_TRUE(seen || !(on || home_now));
          EXPECT_FALSE(on && home_now);
          EXPECT_TRUE(plan.AnyGradientsMove(distance) || !(on || home_now));
          home += home_now ? 1 : 0;
        }
        EXPECT_EQ(home, seen ? 1 : 0);
      }
    }
  }
}

}  // namespace
}  // namespace weft::testing
