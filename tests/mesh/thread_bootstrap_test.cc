#include "weft/mesh/thread_bootstrap.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mesh/support/bootstrap_conformance.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::kTestTimeout;
using ::weft::testing::RunRanks;
using ::weft::testing::RunRanksOnEveryNodeMap;
using ::weft::testing::StatusIs;

class ThreadBootstrapConformance : public ::testing::TestWithParam<weft::testing::ConformanceTest> {};

TEST_P(ThreadBootstrapConformance, HoldsOnEveryNodeMap) {
  for (const int ranks : {1, 2, 3, 4, 7}) RunRanksOnEveryNodeMap(ranks, GetParam().body);
}
INSTANTIATE_TEST_SUITE_P(AllTests, ThreadBootstrapConformance,
                         ::testing::ValuesIn(weft::testing::BootstrapConformance()), weft::testing::NameOf);

TEST(ThreadBootstrapDeadline, NamesTheMissingRanks) {
  const auto ranks = MakeThreadBootstraps(NodeMap::OneNode(3));
  EXPECT_THAT(ranks[1]->AllGatherBlob("here", absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ranks 0, 2 did not arrive")));
  EXPECT_THAT(ranks[0]->AllGatherBlob("here", absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2 did not arrive")));
}

TEST(ThreadBootstrapDeadline, KeepsLaterGathersWorking) {
  const auto ranks = MakeThreadBootstraps(NodeMap::OneNode(2));
  EXPECT_THAT(ranks[0]->AllGatherBlob("early", absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 did not arrive")));
  // The late rank completes the round that timed out on the other rank.
  ASSERT_OK_AND_ASSIGN(const auto late, ranks[1]->AllGatherBlob("late", absl::ZeroDuration()));
  EXPECT_EQ(late[0], "early");
  EXPECT_THAT(ranks[0]->AllGatherBlob("next", absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 did not arrive")));
  ASSERT_OK_AND_ASSIGN(const auto next, ranks[1]->AllGatherBlob("next too", absl::InfiniteDuration()));
  EXPECT_EQ(next[0], "next");
}

TEST(ThreadBootstrapDeadline, KeepsLaterReservationsShared) {
  for (const int ranks : {1, 2, 3}) {
    RunRanksOnEveryNodeMap(ranks, weft::testing::SharesMemoryAfterARankHasMissedADeadline);
  }
}

TEST(RunThreadRanks, ReturnsTheErrorOfTheLowestFailingRank) {
  const absl::Status status = RunThreadRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) {
    return bootstrap.rank() < 2 ? absl::OkStatus()
                                : absl::DataLossError(absl::StrCat("by ", bootstrap.rank()));
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, "rank 2: by 2"));
}

TEST(RunThreadRanks, ReturnsTheCauseRatherThanWhatFollowsFromIt) {
  const auto run = [](const std::vector<absl::Status>& outcomes) {
    return RunThreadRanks(NodeMap::OneNode(static_cast<int>(outcomes.size())),
                          [&](Bootstrap& bootstrap) { return outcomes[bootstrap.rank()]; });
  };
  const absl::Status left = absl::AbortedError("see the error of that rank");
  EXPECT_THAT(run({left, absl::OkStatus(), absl::DataLossError("the cause"), absl::InternalError("another")}),
              StatusIs(absl::StatusCode::kDataLoss, "rank 2: the cause"));
  EXPECT_THAT(run({absl::OkStatus(), left, left}),
              StatusIs(absl::StatusCode::kAborted, "rank 1: see the error of that rank"));
}

TEST(ThreadBootstrapNodes, DoNotShareMemory) {
  RunRanks(NodeMap::RanksPerNode(2, 1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const NodeMemory memory, bootstrap.ReserveNodeMemory(64));
    const auto address = reinterpret_cast<uintptr_t>(memory.segments.front().base);
    WEFT_ASSIGN_OR_RETURN(const auto all, bootstrap.AllGatherBlob(absl::StrCat(address), kTestTimeout));
    EXPECT_THAT(all[0], Not(all[1]));
    EXPECT_FALSE(memory.shared_between_processes);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft
