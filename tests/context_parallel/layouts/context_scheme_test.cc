#include "weft/context_parallel/context_scheme.h"

#include <gtest/gtest.h>

#include "tests/context_parallel/support/masks.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ContextScheme, HasAKindThatFollowsFromTheUlyssesDegree) {
  EXPECT_EQ(ContextScheme{}.kind(4), SchemeKind::kUlysses);
  EXPECT_EQ(ContextScheme{.ulysses_degree = 4}.kind(4), SchemeKind::kUlysses);
  const ContextScheme two{.ulysses_degree = 2};
  EXPECT_EQ(two.kind(4), SchemeKind::kHybrid);
  EXPECT_EQ(two.kind(2), SchemeKind::kUlysses);
  EXPECT_EQ(two.inner_ranks(4), 2);
  for (const int ranks : {1, 4}) {
    EXPECT_EQ(ContextScheme::Gather().kind(ranks), SchemeKind::kGather);
    EXPECT_EQ(ContextScheme::Ring().kind(ranks), SchemeKind::kRing);
  }
}

TEST(ContextScheme, RefusesDegreesThatDoNotDivideTheRanks) {
  for (const int degree : {1, 2, 4}) {
    EXPECT_OK(ContextScheme{.ulysses_degree = degree}.Validate(4, kCausal));
  }
  for (const int degree : {0, 3, 8, -1}) {
    EXPECT_THAT(ContextScheme{.ulysses_degree = degree}.Validate(4, kCausal),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("does not divide the 4 ranks"),
                                                                   HasSubstr("choose one of 1, 2, 4"))));
  }
}

TEST(ContextScheme, GivesTheSplitOfSequences) {
  const SequenceSplit ulysses = ContextScheme::Ulysses().Split(8);
  EXPECT_EQ(ulysses.outer, 1);
  EXPECT_EQ(ulysses.inner, 8);
  const ContextScheme hybrid{.ulysses_degree = 2, .balance = LoadBalance::kHeadTail};
  const SequenceSplit split = hybrid.Split(8);
  EXPECT_EQ(split.outer, 4);
  EXPECT_EQ(split.inner, 2);
  EXPECT_EQ(split.order, SequenceOrder::kHeadTail);
  const ContextScheme swaps = ContextScheme::Gather(LoadBalance::kQueryExchange);
  EXPECT_EQ(swaps.Split(8).order, SequenceOrder::kContiguous);
}

TEST(ContextScheme, RefusesABalanceThatHasNoEffect) {
  for (const LoadBalance balance : {LoadBalance::kHeadTail, LoadBalance::kQueryExchange}) {
    const ContextScheme gather = ContextScheme::Gather(balance);
    EXPECT_OK(gather.Validate(4, kCausal));
    EXPECT_THAT(gather.Validate(4, kFull),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is for causal masks")));
  }
  const ContextScheme ring = ContextScheme::Ring(RingRotation::kShift, LoadBalance::kQueryExchange);
  EXPECT_THAT(ring.Validate(4, kCausal), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  HasSubstr("is for the gather scheme, not for ring")));
}

TEST(ContextScheme, DescribesItself) {
  const ContextScheme hybrid{
      .ulysses_degree = 4, .ring_rotation = RingRotation::kShift, .balance = LoadBalance::kHeadTail};
  EXPECT_EQ(hybrid.Describe(8), "hybrid, 2 x ulysses 4, ring by shift, head-tail");
  EXPECT_EQ(ContextScheme::Gather().Describe(8), "gather");
}

TEST(ContextScheme, NamesGatherForSparseAttention) {
  for (const ContextScheme& scheme :
       {ContextScheme::Ulysses(), ContextScheme{.ulysses_degree = 2}, ContextScheme::Ring(),
        ContextScheme::Ring(RingRotation::kAllGather), ContextScheme::Gather(LoadBalance::kQueryExchange)}) {
    EXPECT_THAT(scheme.ValidateSparse(4, kCausal),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(scheme.Describe(4)), HasSubstr("use gather, with head-tail"))));
  }
  EXPECT_OK(ContextScheme::Ulysses().ValidateSparse(1, kCausal));
  EXPECT_OK(ContextScheme::Gather().ValidateSparse(4, kFull));
  EXPECT_OK(ContextScheme::Gather(LoadBalance::kHeadTail).ValidateSparse(4, kCausal));
  EXPECT_THAT(ContextScheme::Gather(LoadBalance::kHeadTail).ValidateSparse(4, kFull),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("causal")));
}

}  // namespace
}  // namespace weft::testing
