#include "weft/memory/shared_block.h"

#include <gtest/gtest.h>

#include "tests/memory/shared_block_conformance.h"
#include "tests/support/abandoning_bootstrap.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft {
namespace {

using ::weft::testing::kTestTimeout;
using ::weft::testing::RunRanks;
using ::weft::testing::RunRanksOnEveryNodeMap;
using ::weft::testing::StatusIs;

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
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = size_t{1} << 20}));
    if (bootstrap.rank() == 1) {
      EXPECT_FALSE(ExchangeBlobs(bootstrap, "another", std::string("0"), kTestTimeout).ok());
      return absl::OkStatus();
    }
    const std::vector<SharedBlockRequest> requests = {{{0, 1}, 64}};
    EXPECT_THAT(ShareBlocks(bootstrap, *heap, requests, kTestTimeout),
                StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("at the same point")));
    return absl::OkStatus();
  });
}

// Rank 0 agrees on a block in a round in which rank 1 misses its deadline. The later blocks lie in stripes,
// in views that have numbers of their own.
TEST(ShareBlocks, KeepsEarlierBlocksAfterARankHasMissedADeadline) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& base) -> absl::Status {
    weft::testing::AbandoningBootstrap bootstrap(base);
    constexpr size_t kSegmentBytes = size_t{1} << 20;
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = kSegmentBytes}));
    const auto share = [&](size_t bytes) {
      return ShareBlocks(bootstrap, *heap, std::vector<SharedBlockRequest>{{{0, 1}, bytes}}, kTestTimeout);
    };
    if (bootstrap.rank() == 1) {
      bootstrap.AbandonAfter(1);
      EXPECT_THAT(share(64),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::HasSubstr("abandoned")));
    }
    EXPECT_THAT(share(64), StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("at the same point")));
    WEFT_ASSIGN_OR_RETURN(const auto first, share(kSegmentBytes / 16 * 17));
    WEFT_ASSIGN_OR_RETURN(const auto second, share(kSegmentBytes / 4 * 3));
    for (const auto* blocks : {&first, &second}) {
      const auto address = heap->AddressOf(blocks->front().data());
      EXPECT_GE(address.value_or(NodeAddress{}).rank, bootstrap.size());
    }
    return absl::OkStatus();
  });
}

// A segment with room for the count of holders alone has none for the block: its address would lie past the
// end of the segment.
TEST(ShareBlocks, GivesABlockWithoutBytesAnAddressOfItsOwn) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = 4096}));
    const std::vector<SharedBlockRequest> requests = {{{0}, 0}};
    WEFT_ASSIGN_OR_RETURN(std::byte* const large, heap->Allocate(4096 - 64));
    EXPECT_THAT(ShareBlocks(bootstrap, *heap, requests, kTestTimeout),
                StatusIs(absl::StatusCode::kResourceExhausted, ::testing::HasSubstr("cannot allocate")));
    heap->Free(large);
    WEFT_RETURN_IF_ERROR(heap->Allocate(4096 - 128).status());
    WEFT_ASSIGN_OR_RETURN(const auto blocks, ShareBlocks(bootstrap, *heap, requests, kTestTimeout));
    EXPECT_EQ(blocks.front().bytes(), 0);
    EXPECT_EQ(heap->AddressOf(blocks.front().data()), (NodeAddress{0, 4096 - 64}));
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedBlockOverThreads, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace weft
