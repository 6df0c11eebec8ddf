#include "weft/mesh/store_bootstrap.h"

#include <unistd.h>

#include <cstdlib>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mesh/support/bootstrap_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::kTestTimeout;
using ::weft::testing::StatusIs;
using ::weft::testing::WorldBootstrap;

// Another bootstrap of the same ranks.
absl::StatusOr<std::unique_ptr<Bootstrap>> MakeAnother(const std::string& prefix) {
  WEFT_ASSIGN_OR_RETURN(StoreBootstrapOptions options, StoreBootstrapOptions::FromEnvironment());
  options.prefix = prefix;
  WEFT_ASSIGN_OR_RETURN(const auto store, OpenFileStore(std::getenv("WEFT_STORE")));
  return MakeStoreBootstrap(store, options);
}

absl::Status Barrier() { return AgreeOnStatus(WorldBootstrap(), absl::OkStatus(), kTestTimeout); }

class StoreBootstrapConformance : public ::testing::TestWithParam<weft::testing::ConformanceTest> {};

TEST_P(StoreBootstrapConformance, Holds) { EXPECT_OK(GetParam().body(WorldBootstrap())); }
INSTANTIATE_TEST_SUITE_P(AllTests, StoreBootstrapConformance,
                         ::testing::ValuesIn(weft::testing::BootstrapConformance()), weft::testing::NameOf);

TEST(StoreBootstrap, NamesTheTransportBetweenNodes) {
  EXPECT_EQ(WorldBootstrap().TransportName(), "TCP sockets");
}

TEST(StoreBootstrap, ReservesAtMostTheFilesThatItMayMake) {
  const NodeMap& nodes = WorldBootstrap().node_map();
  if (nodes.node_count() == WorldBootstrap().size())
    GTEST_SKIP() << "memory that is not shared is in no file";
  const size_t files = nodes.RanksOf(WorldBootstrap().node()).size();
  EXPECT_OK(weft::testing::ReservesAtMostTheFilesThatItMayMake(WorldBootstrap(), files));
}

TEST(StoreBootstrap, BootstrapsOfOnePrefixFollowEachOther) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK_AND_ASSIGN(const auto next, MakeAnother("followers"));
    EXPECT_EQ(next->rank(), WorldBootstrap().rank());
    EXPECT_EQ(next->node_map().node_of_rank, WorldBootstrap().node_map().node_of_rank);
    EXPECT_OK(weft::testing::GathersBlobsInRankOrder(*next));
    EXPECT_OK(weft::testing::SharesMemoryWithinTheNode(*next));
  }
  EXPECT_OK(Barrier());
}

TEST(StoreBootstrap, BootstrapsOfTwoPrefixesExistAtTheSameTime) {
  ASSERT_OK_AND_ASSIGN(const auto first, MakeAnother("first"));
  ASSERT_OK_AND_ASSIGN(const auto second, MakeAnother("second"));
  EXPECT_OK(weft::testing::GathersBlobsInRankOrder(*second));
  EXPECT_OK(weft::testing::GathersBlobsInRankOrder(*first));
  EXPECT_OK(Barrier());
}

// The late rank joins the first round only after the round has timed out on the other ranks.
TEST(StoreBootstrap, NamesTheLateRankAndKeepsWorking) {
  const int late = WorldBootstrap().size() - 1;
  ASSERT_OK_AND_ASSIGN(const auto other, MakeAnother("late"));
  if (WorldBootstrap().rank() != late) {
    EXPECT_THAT(
        other->AllGatherBlob("early", absl::Milliseconds(1)),
        StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(absl::StrCat(late, " did not arrive"))));
  }
  ASSERT_OK(Barrier());
  if (WorldBootstrap().rank() == late) {
    ASSERT_OK_AND_ASSIGN(const auto blobs, other->AllGatherBlob("late", absl::ZeroDuration()));
    EXPECT_EQ(blobs[0], late == 0 ? "late" : "early");
  }
  ASSERT_OK_AND_ASSIGN(const auto next, other->AllGatherBlob("next", kTestTimeout));
  EXPECT_THAT(next, ::testing::Each("next"));
  EXPECT_OK(Barrier());
}

// The child destroys its copy of the bootstrap, as a worker of a data loader does, and ends without exit().
TEST(StoreBootstrap, AForkedChildLeavesTheParentIntact) {
  ASSERT_OK_AND_ASSIGN(auto other, MakeAnother("fork"));
  ASSERT_OK_AND_ASSIGN(const NodeMemory memory, other->ReserveNodeMemory(1000));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    other.reset();
    std::_Exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  for (const NodeMemory::Segment& segment : memory.segments) EXPECT_EQ(*segment.base, std::byte{0});
  EXPECT_OK(weft::testing::SharesMemoryWithinTheNode(*other));
  EXPECT_OK(Barrier());
}

}  // namespace
}  // namespace weft
