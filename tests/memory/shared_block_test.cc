#include "weft/memory/shared_block.h"

#include <gtest/gtest.h>

#include "tests/memory/shared_block_conformance.h"
#include "tests/support/thread_ranks.h"

namespace weft {
namespace {

using ::weft::testing::RunRanksOnEveryNodeMap;

class SharedBlockOverThreads : public ::testing::TestWithParam<int> {};

TEST_P(SharedBlockOverThreads, HoldersShareTheSameMemory) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::HoldersShareTheSameMemory);
}
TEST_P(SharedBlockOverThreads, BlocksAreSpreadEvenlyOverSegments) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::BlocksAreSpreadEvenlyOverSegments);
}
TEST_P(SharedBlockOverThreads, MemoryIsFreedAfterTheLastHolder) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::MemoryIsFreedAfterTheLastHolder);
}
TEST_P(SharedBlockOverThreads, BlocksMayBeLargerThanASegment) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::BlocksMayBeLargerThanASegment);
}
TEST_P(SharedBlockOverThreads, TheWholeNodeResolvesAddressesInABlock) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::TheWholeNodeResolvesAddressesInABlock);
}
TEST_P(SharedBlockOverThreads, AllRanksGetTheSameError) {
  RunRanksOnEveryNodeMap(GetParam(), weft::testing::AllRanksGetTheSameError);
}
TEST(ShareBlocks, FailsIfAnotherRankIsInADifferentCollective) {
  weft::testing::RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = size_t{1} << 20}));
    constexpr absl::Duration kTimeout = absl::Seconds(120);
    if (bootstrap.rank() == 1) {
      EXPECT_FALSE(ExchangeBlobs(bootstrap, "another", std::string("0"), kTimeout).ok());
      return absl::OkStatus();
    }
    const std::vector<SharedBlockRequest> requests = {{{0, 1}, 64}};
    EXPECT_THAT(
        ShareBlocks(bootstrap, *heap, requests, kTimeout),
        weft::testing::StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("at the same point")));
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedBlockOverThreads, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace weft
