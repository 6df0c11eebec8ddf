#include <gtest/gtest.h>

#include "tests/memory/shared_block_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::weft::testing::WorldBootstrap;

TEST(SharedBlockOverMpi, HoldersShareTheSameMemory) {
  EXPECT_OK(weft::testing::HoldersShareTheSameMemory(WorldBootstrap()));
}
TEST(SharedBlockOverMpi, BlocksAreSpreadEvenlyOverSegments) {
  EXPECT_OK(weft::testing::BlocksAreSpreadEvenlyOverSegments(WorldBootstrap()));
}
TEST(SharedBlockOverMpi, MemoryIsFreedAfterTheLastHolder) {
  EXPECT_OK(weft::testing::MemoryIsFreedAfterTheLastHolder(WorldBootstrap()));
}
TEST(SharedBlockOverMpi, BlocksMayBeLargerThanASegment) {
  EXPECT_OK(weft::testing::BlocksMayBeLargerThanASegment(WorldBootstrap()));
}
TEST(SharedBlockOverMpi, TheWholeNodeResolvesAddressesInABlock) {
  EXPECT_OK(weft::testing::TheWholeNodeResolvesAddressesInABlock(WorldBootstrap()));
}
TEST(SharedBlockOverMpi, AllRanksGetTheSameError) {
  EXPECT_OK(weft::testing::AllRanksGetTheSameError(WorldBootstrap()));
}

}  // namespace
}  // namespace weft
