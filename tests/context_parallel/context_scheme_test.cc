#include "weft/context_parallel/context_scheme.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr AttentionMask kCausal{};
constexpr AttentionMask kFull{.causal = false, .window = {}};

TEST(ContextScheme, FollowsFromTheUlyssesDegree) {
  ASSERT_OK_AND_ASSIGN(const ContextScheme none, ContextScheme::OfDegree(std::nullopt, 4));
  EXPECT_EQ(none.kind, SchemeKind::kUlysses);
  ASSERT_OK_AND_ASSIGN(const ContextScheme all, ContextScheme::OfDegree(4, 4));
  EXPECT_EQ(all.kind, SchemeKind::kUlysses);
  ASSERT_OK_AND_ASSIGN(const ContextScheme one, ContextScheme::OfDegree(1, 4));
  EXPECT_EQ(one.kind, SchemeKind::kGatherKv);
  ASSERT_OK_AND_ASSIGN(const ContextScheme between, ContextScheme::OfDegree(2, 4));
  EXPECT_EQ(between.kind, SchemeKind::kHybrid);
  EXPECT_EQ(between.inner(4), 2);
  for (const int degree : {0, 3, 8, -1}) {
    EXPECT_THAT(ContextScheme::OfDegree(degree, 4),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("choose one of 1, 2, 4")));
  }
}

TEST(ContextScheme, SaysHowSequencesLie) {
  const SequenceSplit ulysses = ContextScheme{.kind = SchemeKind::kUlysses}.Split(8);
  EXPECT_EQ(ulysses.outer, 1);
  EXPECT_EQ(ulysses.inner, 8);
  const ContextScheme hybrid{
      .kind = SchemeKind::kHybrid, .ulysses_degree = 2, .balance = LoadBalance::kHeadTail};
  const SequenceSplit split = hybrid.Split(8);
  EXPECT_EQ(split.outer, 4);
  EXPECT_EQ(split.inner, 2);
  EXPECT_EQ(split.order, SequenceOrder::kHeadTail);
  const ContextScheme swaps{.kind = SchemeKind::kGatherKv, .balance = LoadBalance::kQueryExchange};
  EXPECT_EQ(swaps.Split(8).order, SequenceOrder::kContiguous);
}

TEST(ContextScheme, RefusesHybridsOfOneLevel) {
  ContextScheme hybrid{.kind = SchemeKind::kHybrid, .ulysses_degree = 3};
  EXPECT_THAT(hybrid.Validate(4, kCausal),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not divide the 4 ranks")));
  hybrid.ulysses_degree = 4;
  EXPECT_THAT(hybrid.Validate(4, kCausal),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use ulysses instead")));
  hybrid.ulysses_degree = 1;
  hybrid.outer = OuterExchange::kRing;
  EXPECT_THAT(hybrid.Validate(4, kCausal),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use ring instead")));
  hybrid.ulysses_degree = 2;
  EXPECT_OK(hybrid.Validate(4, kCausal));
}

TEST(ContextScheme, RefusesBalanceThatHasNoUse) {
  for (const LoadBalance balance : {LoadBalance::kHeadTail, LoadBalance::kQueryExchange}) {
    const ContextScheme gather{.kind = SchemeKind::kGatherKv, .balance = balance};
    EXPECT_OK(gather.Validate(4, kCausal));
    EXPECT_THAT(gather.Validate(4, kFull),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is for causal masks")));
  }
  const ContextScheme ring{.kind = SchemeKind::kRing, .balance = LoadBalance::kQueryExchange};
  EXPECT_THAT(ring.Validate(4, kCausal), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  HasSubstr("is for the gather scheme, not for ring")));
}

TEST(ContextScheme, DescribesItself) {
  const ContextScheme hybrid{.kind = SchemeKind::kHybrid,
                             .ulysses_degree = 4,
                             .outer = OuterExchange::kRing,
                             .rotation = RingRotation::kShift,
                             .balance = LoadBalance::kHeadTail};
  EXPECT_EQ(hybrid.Describe(8), "hybrid, 2 x ulysses 4, ring by shift, head-tail");
  EXPECT_EQ(ContextScheme{.kind = SchemeKind::kGatherKv}.Describe(8), "gather");
}

}  // namespace
}  // namespace weft::testing
