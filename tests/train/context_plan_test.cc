// Choice of the context-parallel scheme by flags and bytes.
#include "src/train/plan/context_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSeqLen = 1024;

AttentionShape Heads(int64_t heads, int64_t kv_heads) {
  return {.heads = heads, .kv_heads = kv_heads, .head_dim = 64, .value_dim = 64};
}

ContextPlan Plan(const ContextOptions& options, const AttentionShape& shape = Heads(8, 8)) {
  EXPECT_TRUE(Validate(options).ok()) << Validate(options);
  const auto plan = PlanContext(options, shape, AttentionMask{}, kSeqLen);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

int64_t MostBytes(const ContextScheme& scheme, const AttentionShape& shape, int ranks) {
  const SequenceLayout layout = *SequenceLayout::Create({kSeqLen}, scheme.Split(ranks));
  int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    most = std::max(most, CostsOf(scheme, shape, AttentionMask{}, layout, rank).bytes());
  }
  return most;
}

TEST(ContextPlan, SplitsNothingOnOneRank) {
  const ContextPlan plan = Plan({.size = 1});
  EXPECT_EQ(plan.split().ranks(), 1);
}

TEST(ContextPlan, UsesTheSchemeThatTheFlagNames) {
  EXPECT_EQ(Plan({.size = 4, .scheme = CpScheme::kUlysses}).scheme, ContextScheme{});
  const ContextPlan gather = Plan({.size = 4, .scheme = CpScheme::kGather});
  EXPECT_EQ(gather.scheme.kind(gather.size), SchemeKind::kGather);
  EXPECT_EQ(gather.reason, "--cp-scheme");
  const ContextPlan ring =
      Plan({.size = 4, .scheme = CpScheme::kRing, .ring_rotate = RingRotation::kAllGather});
  EXPECT_EQ(ring.scheme.kind(ring.size), SchemeKind::kRing);
  EXPECT_EQ(ring.scheme.ring_rotation, RingRotation::kAllGather);
}

TEST(ContextPlan, BalancesACausalMaskByDefault) {
  ContextOptions options{.size = 4};
  for (const CpScheme scheme : {CpScheme::kGather, CpScheme::kRing, CpScheme::kHybrid}) {
    options.scheme = scheme;
    options.load_balance = std::nullopt;
    EXPECT_EQ(Plan(options).split().order, SequenceOrder::kHeadTail);
    options.load_balance = LoadBalance::kNone;
    EXPECT_EQ(Plan(options).split().order, SequenceOrder::kContiguous);
  }
}

TEST(ContextPlan, UsesAContiguousLayoutForQueryExchange) {
  const ContextPlan plan =
      Plan({.size = 4, .scheme = CpScheme::kGather, .load_balance = LoadBalance::kQueryExchange});
  EXPECT_EQ(plan.scheme.kind(plan.size), SchemeKind::kGather);
  EXPECT_EQ(plan.scheme.balance, LoadBalance::kQueryExchange);
  EXPECT_EQ(plan.split().order, SequenceOrder::kContiguous);
}

TEST(ContextPlan, ChoosesOnlySchemesWithTheRequestedBalance) {
  const AttentionShape shape = Heads(8, 8);
  ASSERT_EQ(Plan({.size = 4}, shape).scheme.kind(4), SchemeKind::kUlysses);
  ASSERT_EQ(Plan({.size = 4, .load_balance = LoadBalance::kNone}, shape).scheme.kind(4),
            SchemeKind::kUlysses);
  const ContextPlan four = Plan({.size = 4, .load_balance = LoadBalance::kHeadTail}, shape);
  EXPECT_EQ(four.split().order, SequenceOrder::kHeadTail);
  EXPECT_THAT(four.reason, HasSubstr("to a rank in an attention's forward and backward"));
  // There is no hybrid of two ranks.
  const ContextPlan two = Plan({.size = 2, .load_balance = LoadBalance::kHeadTail}, shape);
  EXPECT_EQ(two.scheme.kind(two.size), SchemeKind::kGather);
  EXPECT_EQ(two.reason, "--load-balance");
}

TEST(ContextPlan, MakesAHybridOfADegreeBetweenOneAndAllRanks) {
  const ContextPlan degree = Plan({.size = 4, .ulysses_degree = 2});
  EXPECT_EQ(degree.scheme.kind(degree.size), SchemeKind::kHybrid);
  EXPECT_EQ(degree.reason, "--ulysses-degree");
  EXPECT_EQ(degree.split().outer, 2);
  EXPECT_EQ(degree.split().inner, 2);
  EXPECT_EQ(Plan({.size = 4, .ulysses_degree = 4}).scheme.kind(4), SchemeKind::kUlysses);
  EXPECT_EQ(Plan({.size = 4, .ulysses_degree = 1}).scheme.kind(4), SchemeKind::kGather);
}

TEST(ContextPlan, MakesTheOuterLevelOfAHybridARingIfARotationIsGiven) {
  ContextOptions options{.size = 4, .scheme = CpScheme::kHybrid};
  EXPECT_EQ(Plan(options).scheme.ring_rotation, std::nullopt);
  options.ring_rotate = RingRotation::kAllGather;
  EXPECT_EQ(Plan(options).scheme.ring_rotation, RingRotation::kAllGather);
}

TEST(ContextPlan, ChoosesTheSchemeWithTheFewestBytes) {
  for (const AttentionShape& shape : {Heads(8, 8), Heads(8, 1), Heads(32, 8), Heads(16, 2)}) {
    for (const int ranks : {2, 4, 8}) {
      const ContextPlan plan = Plan({.size = ranks}, shape);
      const int64_t bytes = MostBytes(plan.scheme, shape, ranks);
      for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kGather, CpScheme::kRing}) {
        EXPECT_LE(bytes, MostBytes(Plan({.size = ranks, .scheme = scheme}, shape).scheme, shape, ranks));
      }
      EXPECT_THAT(plan.reason, HasSubstr("to a rank in an attention's forward and backward"));
    }
  }
  // A gather is cheap with few key and value heads, and expensive with many.
  EXPECT_EQ(Plan({.size = 2}, Heads(8, 1)).scheme.kind(2), SchemeKind::kGather);
  EXPECT_EQ(Plan({.size = 8}, Heads(8, 8)).scheme.kind(8), SchemeKind::kUlysses);
}

TEST(ContextPlan, DoesNotSaveBytesByLeavingARankWithoutWork) {
  const ContextPlan plan = Plan({.size = 4}, Heads(2, 2));
  EXPECT_NE(plan.scheme.kind(plan.size), SchemeKind::kUlysses);
  EXPECT_THAT(plan.reason, HasSubstr("of the mean work"));
}

TEST(ContextPlan, GathersForSparseAttention) {
  AttentionShape shape = Heads(8, 8);
  shape.index_dim = 32;
  for (const CpScheme scheme : {CpScheme::kAuto, CpScheme::kGather}) {
    const ContextPlan plan = Plan({.size = 8, .scheme = scheme}, shape);
    EXPECT_EQ(plan.scheme.kind(plan.size), SchemeKind::kGather);
    EXPECT_EQ(plan.split().order, SequenceOrder::kHeadTail);
    EXPECT_EQ(plan.reason, scheme == CpScheme::kAuto ? "--attention dsa" : "--cp-scheme");
  }
  const ContextPlan plain = Plan({.size = 8, .load_balance = LoadBalance::kNone}, shape);
  EXPECT_EQ(plain.split().order, SequenceOrder::kContiguous);
}

TEST(ContextPlan, ChoosesTheCheapestDegreeOfAHybrid) {
  const AttentionShape shape = Heads(16, 4);
  const ContextPlan plan = Plan({.size = 8, .scheme = CpScheme::kHybrid}, shape);
  for (const int64_t degree : {2, 4}) {
    const ContextPlan other = Plan({.size = 8, .scheme = CpScheme::kHybrid, .ulysses_degree = degree}, shape);
    EXPECT_LE(MostBytes(plan.scheme, shape, 8), MostBytes(other.scheme, shape, 8));
  }
}

}  // namespace
}  // namespace weft
