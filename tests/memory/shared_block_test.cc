#include "weft/memory/shared_block.h"

#include <gtest/gtest.h>

#include "tests/memory/shared_block_conformance.h"
#include "tests/support/thread_ranks.h"

namespace weft {
namespace {

using ::weft::testing::RunRanksOnEveryNodeMap;

class SharedBlockOverThreads : public ::testing::TestWithParam<int> {};

TEST_P(SharedBlockOverThreads, IsOneMemoryOfItsHolders) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::HoldersShareOneMemory);
}
TEST_P(SharedBlockOverThreads, FillsSegmentsEvenly) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::SegmentsFillEvenly);
}
TEST_P(SharedBlockOverThreads, StaysUntilTheLastHolderLetsGo) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::BlocksStayUntilTheLastHolderLetsGo);
}
TEST_P(SharedBlockOverThreads, FailsOnAllRanksAlike) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::RanksFailAlike);
}
INSTANTIATE_TEST_SUITE_P(Ranks, SharedBlockOverThreads, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace weft
