#include "weft/mesh/mpi_bootstrap.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mesh/bootstrap_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;
using ::weft::testing::WorldBootstrap;

TEST(MpiBootstrap, GathersBlobsInRankOrder) {
  EXPECT_OK(weft::testing::GathersBlobsInRankOrder(WorldBootstrap()));
}
TEST(MpiBootstrap, AllRanksGetTheErrorOfTheLowestFailingRank) {
  EXPECT_OK(weft::testing::AllRanksGetTheErrorOfTheLowestFailingRank(WorldBootstrap()));
}
TEST(MpiBootstrap, AFailingRankEndsTheExchangesOfItsPeers) {
  EXPECT_OK(weft::testing::AFailingRankEndsTheExchangesOfItsPeers(WorldBootstrap()));
}
TEST(MpiBootstrap, SharesMemoryWithinTheNode) {
  EXPECT_OK(weft::testing::SharesMemoryWithinTheNode(WorldBootstrap()));
}
TEST(MpiBootstrap, RejectsReservationsAboveTheFreeMemory) {
  EXPECT_OK(weft::testing::RejectsReservationsAboveTheFreeMemory(WorldBootstrap()));
}

TEST(MpiBootstrap, PutsTheRanksOfOneMachineOnOneNode) {
  EXPECT_EQ(WorldBootstrap().node_map().node_count(), 1);
  EXPECT_EQ(WorldBootstrap().node(), 0);
}

TEST(MpiBootstrap, TwoBootstrapsCanExistAtTheSameTime) {
  ASSERT_OK_AND_ASSIGN(const auto second, MakeMpiBootstrap());
  EXPECT_EQ(second->rank(), WorldBootstrap().rank());
  EXPECT_EQ(second->size(), WorldBootstrap().size());
  EXPECT_OK(weft::testing::GathersBlobsInRankOrder(*second));
}

// As if srun had started these ranks, and one more that MPI does not connect.
TEST(MpiBootstrap, RefusesTasksOfSrunThatAreNotConnected) {
  const std::string rank = std::getenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_RANK");
  setenv("SLURM_PROCID", rank.c_str(), 1);
  setenv("SLURM_STEP_NUM_TASKS", absl::StrCat(WorldBootstrap().size() + 1).c_str(), 1);
  EXPECT_THAT(MakeMpiBootstrap(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use srun --mpi=pmix")));
  setenv("SLURM_STEP_NUM_TASKS", absl::StrCat(WorldBootstrap().size()).c_str(), 1);
  EXPECT_OK(MakeMpiBootstrap());
  for (const char* name : {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}) unsetenv(name);
  setenv("OMPI_COMM_WORLD_RANK", rank.c_str(), 1);
}

TEST(MpiBootstrap, NamesTheLateRankAndKeepsWorking) {
  Bootstrap& world = WorldBootstrap();
  ASSERT_OK_AND_ASSIGN(const auto other, MakeMpiBootstrap());
  const int late = world.size() - 1;
  const bool alone = world.size() == 1;
  // The late rank joins the first round only after the round has timed out on the other ranks.
  if (world.rank() != late) {
    EXPECT_THAT(other->AllGatherBlob("early", absl::Milliseconds(1)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(absl::StrCat(late))));
  }
  ASSERT_OK(AgreeOnStatus(world, absl::OkStatus(), absl::Seconds(60)));
  if (world.rank() == late) {
    ASSERT_OK_AND_ASSIGN(const auto blobs, other->AllGatherBlob("late", absl::Seconds(60)));
    EXPECT_EQ(blobs[0], alone ? "late" : "early");
  }
  ASSERT_OK_AND_ASSIGN(const auto next, other->AllGatherBlob("next", absl::Seconds(60)));
  EXPECT_THAT(next, ::testing::Each("next"));
}

}  // namespace
}  // namespace weft
