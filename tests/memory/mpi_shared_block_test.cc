#include <gtest/gtest.h>

#include "tests/memory/shared_block_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::weft::testing::WorldBootstrap;

TEST(SharedBlockOverMpi, IsOneMemoryOfItsHolders) {
  EXPECT_OK(weft::testing::HoldersShareOneMemory(WorldBootstrap()));
}
TEST(SharedBlockOverMpi, FillsSegmentsEvenly) {
  EXPECT_OK(weft::testing::SegmentsFillEvenly(WorldBootstrap()));
}
TEST(SharedBlockOverMpi, StaysUntilTheLastHolderLetsGo) {
  EXPECT_OK(weft::testing::BlocksStayUntilTheLastHolderLetsGo(WorldBootstrap()));
}
TEST(SharedBlockOverMpi, FailsOnAllRanksAlike) { EXPECT_OK(weft::testing::RanksFailAlike(WorldBootstrap())); }

}  // namespace
}  // namespace weft
