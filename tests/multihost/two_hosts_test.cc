// Checks that the emulated hosts appear as two nodes, which the other two-host tests rely on.
#include <gmock/gmock.h>

#include "tests/support/mpi_world.h"
#include "weft/mesh/bootstrap.h"

namespace weft::testing {
namespace {

TEST(TwoHosts, AreTwoNodesOfTwoRanksEach) {
  EXPECT_THAT(WorldBootstrap().node_map().node_of_rank, ::testing::ElementsAre(0, 0, 1, 1));
}

}  // namespace
}  // namespace weft::testing
