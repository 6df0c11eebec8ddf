#include "src/comm/engine/lane_agreement.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ProcessGroup kGroup{"tp", {4, 7}, 0};

// A proposal with the free indices 0, 1, ... of the characters '1', and a limit after them.
LaneProposal Proposal(std::string_view free, int existing = -1) {
  LaneProposal proposal;
  proposal.group_hash = 17;
  proposal.purpose = LanePurpose::kAllReduce;
  proposal.number = 3;
  proposal.existing = existing;
  for (const char bit : free) proposal.is_free.push_back(bit == '1');
  proposal.limit = static_cast<int>(free.size());
  return proposal;
}

absl::StatusOr<LaneDecision> Decide(const LaneProposal& a, const LaneProposal& b) {
  return DecideLane(kGroup, "tp/all_reduce", {a.Serialize(), b.Serialize()});
}

TEST(LaneAgreement, TakesTheLowestIndexThatIsFreeOnAllMembers) {
  const auto decision = Decide(Proposal("0111010011"), Proposal("1000100011"));
  ASSERT_OK(decision);
  EXPECT_EQ(decision->index, 9) << "free on both: 8, which is for lanes of all ranks, and 9";
  EXPECT_TRUE(decision->is_new);
}

TEST(LaneAgreement, ReusesALaneOnlyIfAllMembersHaveItAtOneIndex) {
  EXPECT_EQ(Decide(Proposal("0011", 1), Proposal("1011", 1))->index, 1);
  EXPECT_FALSE(Decide(Proposal("0011", 1), Proposal("1011", 1))->is_new);
  for (const int other : {-1, 2}) {
    const auto decision = Decide(Proposal("0011", 1), Proposal("0001", other));
    ASSERT_OK(decision);
    EXPECT_EQ(decision->index, 3);
    EXPECT_TRUE(decision->is_new);
  }
}

TEST(LaneAgreement, TakesAnIndexAboveThoseInUse) {
  LaneProposal few = Proposal("00");
  LaneProposal many = Proposal("000000");
  few.limit = many.limit = 1000;
  EXPECT_EQ(Decide(few, many)->index, 6);
  many.limit = 6;
  EXPECT_THAT(Decide(few, many), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("one lane for")));
}

TEST(LaneAgreement, SaysThatNoIndexIsFree) {
  EXPECT_THAT(
      Decide(Proposal("0101"), Proposal("1010")),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("tp/all_reduce"), HasSubstr("ranks 4, 7"), HasSubstr("one lane for"))));
}

TEST(LaneAgreement, NamesMembersThatFormDifferentLanes) {
  LaneProposal other = Proposal("1");
  other.number = 4;
  EXPECT_THAT(Decide(Proposal("1"), other),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 4 forms"), HasSubstr("rank 7 forms"), HasSubstr("number 4"))));
}

TEST(LaneAgreement, ReturnsTheErrorOfAMember) {
  LaneProposal failed = Proposal("1");
  failed.status = absl::ResourceExhaustedError("no node memory");
  EXPECT_THAT(Decide(Proposal("1"), failed),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("rank 7: no node memory")));
}

TEST(LaneAgreement, RefusesBlobsOfAnotherExchange) {
  const std::string own = Proposal("1").Serialize();
  EXPECT_THAT(DecideLane(kGroup, "tp/all_reduce", {own}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("1 blobs for 2 members")));
  for (size_t bytes = 0; bytes < own.size(); ++bytes) {
    EXPECT_THAT(DecideLane(kGroup, "tp/all_reduce", {own, own.substr(0, bytes)}),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 7")));
  }
  EXPECT_THAT(DecideLane(kGroup, "tp/all_reduce", {own, std::string(own.size(), 'x')}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 7")));
}

}  // namespace
}  // namespace weft::testing
