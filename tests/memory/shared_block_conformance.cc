#include "tests/memory/shared_block_conformance.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "weft/memory/shared_block.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;
constexpr size_t kSegmentBytes = size_t{1} << 20;

absl::Status Barrier(Bootstrap& bootstrap) {
  return AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout);
}

std::vector<int> NodeOf(const Bootstrap& bootstrap) { return bootstrap.node_map().RanksOf(bootstrap.node()); }

// The node's ranks with the same parity as this rank: a set of holders that is smaller than the node.
std::vector<int> HalfOf(const Bootstrap& bootstrap) {
  std::vector<int> half = NodeOf(bootstrap);
  std::erase_if(half, [&](int rank) { return (rank - bootstrap.rank()) % 2 != 0; });
  return half;
}

absl::StatusOr<std::unique_ptr<NodeHeap>> MakeHeap(Bootstrap& bootstrap) {
  return NodeHeap::Create(bootstrap, {.segment_bytes = kSegmentBytes, .timeout = kTestTimeout});
}

// The holders write the numbers in turn: number i is written by holder i modulo the number of holders. Then
// every holder reads all numbers.
absl::Status WriteAndRead(Bootstrap& bootstrap, const SharedBlock& block, const std::vector<int>& holders) {
  auto* numbers = reinterpret_cast<int*>(block.data());
  const int count = static_cast<int>(block.bytes() / sizeof(int));
  EXPECT_TRUE(std::all_of(numbers, numbers + count, [](int number) { return number == 0; }));
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  const auto own = std::find(holders.begin(), holders.end(), bootstrap.rank()) - holders.begin();
  for (int i = static_cast<int>(own); i < count; i += static_cast<int>(holders.size())) numbers[i] = i + 1;
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  for (int i = 0; i < count; ++i) EXPECT_EQ(numbers[i], i + 1);
  return Barrier(bootstrap);
}

}  // namespace

absl::Status HoldersShareTheSameMemory(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto heap, MakeHeap(bootstrap));
  const std::vector<SharedBlockRequest> requests = {{NodeOf(bootstrap), 400},
                                                    {HalfOf(bootstrap), 4000},
                                                    {{bootstrap.rank()}, 0},
                                                    {NodeOf(bootstrap), 1000}};
  WEFT_ASSIGN_OR_RETURN(const auto blocks, ShareBlocks(bootstrap, *heap, requests, kTestTimeout));
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(blocks[i].bytes(), requests[i].bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks[i].data()) % 64, 0);
    WEFT_RETURN_IF_ERROR(WriteAndRead(bootstrap, blocks[i], requests[i].holders));
  }
  return Barrier(bootstrap);
}

absl::Status BlocksAreSpreadEvenlyOverSegments(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto heap, MakeHeap(bootstrap));
  const std::vector<int> node = NodeOf(bootstrap);
  const std::vector<SharedBlockRequest> requests(2 * node.size(), {node, 640});
  WEFT_ASSIGN_OR_RETURN(const auto blocks, ShareBlocks(bootstrap, *heap, requests, kTestTimeout));
  std::map<int, int> owned;
  for (const SharedBlock& block : blocks) ++owned[heap->AddressOf(block.data())->rank];
  for (const int rank : node) EXPECT_EQ(owned[rank], 2);
  return Barrier(bootstrap);
}

absl::Status BlocksMayBeLargerThanASegment(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto heap, MakeHeap(bootstrap));
  const std::vector<int> node = NodeOf(bootstrap);
  const size_t large = node.size() * (kSegmentBytes - 100'000);
  const std::vector<SharedBlockRequest> requests = {{node, large}, {node, 1000}, {{bootstrap.rank()}, 640}};
  for (int round = 0; round < 2; ++round) {  // The second round reuses the memory of the first.
    WEFT_ASSIGN_OR_RETURN(auto blocks, ShareBlocks(bootstrap, *heap, requests, kTestTimeout));
    for (size_t i = 0; i < requests.size(); ++i) {
      WEFT_RETURN_IF_ERROR(WriteAndRead(bootstrap, blocks[i], requests[i].holders));
    }
    // Peers resolve addresses in a block alike.
    const auto last = heap->AddressOf(blocks[0].data() + large - 1);
    EXPECT_EQ(heap->Resolve(*last), blocks[0].data() + large - 1);
    EXPECT_TRUE(heap->AddressOf(blocks[0].data(), large));
    EXPECT_FALSE(heap->AddressOf(blocks[0].data(), 2 * node.size() * kSegmentBytes));
    WEFT_ASSIGN_OR_RETURN(const auto addresses,
                          bootstrap.AllGatherBlob(absl::StrCat(last->rank, " ", last->offset), kTestTimeout));
    for (const int rank : node) {
      EXPECT_EQ(addresses[static_cast<size_t>(rank)], addresses[static_cast<size_t>(node.front())]);
    }
    blocks.clear();
    WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  }
  EXPECT_EQ(heap->allocated_bytes(), 0);
  const std::vector<SharedBlockRequest> too_large = {{node, (node.size() + 1) * kSegmentBytes}};
  EXPECT_THAT(ShareBlocks(bootstrap, *heap, too_large, kTestTimeout),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cannot allocate")));
  EXPECT_EQ(heap->allocated_bytes(), 0);
  return Barrier(bootstrap);
}

absl::Status TheWholeNodeResolvesAddressesInABlock(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto heap, MakeHeap(bootstrap));
  const std::vector<int> half = HalfOf(bootstrap);
  const size_t bytes = half.size() * (kSegmentBytes - 100'000);  // Striped, if there are several holders.
  const std::vector<SharedBlockRequest> requests = {{half, bytes}, {half, 1000}};
  WEFT_ASSIGN_OR_RETURN(const auto blocks, ShareBlocks(bootstrap, *heap, requests, kTestTimeout));
  auto* last = reinterpret_cast<int*>(blocks[0].data() + bytes) - 1;
  if (bootstrap.rank() == half.front()) *last = 1000 + half.front();
  const NodeAddress own = *heap->AddressOf(last);
  const std::string blob(reinterpret_cast<const char*>(&own), sizeof(own));
  WEFT_ASSIGN_OR_RETURN(const auto addresses, ExchangeBlobs(bootstrap, "addresses", blob, kTestTimeout));
  for (const int rank : NodeOf(bootstrap)) {
    NodeAddress theirs{};
    std::memcpy(&theirs, addresses[static_cast<size_t>(rank)].data(), sizeof(theirs));
    const std::vector<int> node = NodeOf(bootstrap);
    const int first = *std::find_if(node.begin(), node.end(), [&](int r) { return (r - rank) % 2 == 0; });
    EXPECT_EQ(*reinterpret_cast<const int*>(heap->Resolve(theirs)), 1000 + first);
  }
  return Barrier(bootstrap);
}

absl::Status MemoryIsFreedAfterTheLastHolder(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto heap, MakeHeap(bootstrap));
  const std::vector<int> node = NodeOf(bootstrap);
  const std::vector<SharedBlockRequest> requests(node.size(), {node, 64});
  WEFT_ASSIGN_OR_RETURN(auto blocks, ShareBlocks(bootstrap, *heap, requests, kTestTimeout));
  for (SharedBlock& block : blocks) {
    if (heap->AddressOf(block.data())->rank == bootstrap.rank()) *block.data() = std::byte{7};
  }
  SharedBlock moved = std::move(blocks.back());
  EXPECT_FALSE(blocks.back());
  blocks.back() = std::move(moved);
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  for (int leaving = 0; leaving < bootstrap.size(); ++leaving) {
    if (leaving == bootstrap.rank()) {
      for (const SharedBlock& block : blocks) EXPECT_EQ(*block.data(), std::byte{7});
      blocks.clear();
    }
    WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
    // The block that this rank owns, including its header.
    EXPECT_EQ(heap->allocated_bytes(), leaving < node.back() ? 128 : 0);
    WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  }
  return Barrier(bootstrap);
}

absl::Status AllRanksGetTheSameError(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto heap, MakeHeap(bootstrap));
  const std::vector<int> node = NodeOf(bootstrap);
  // Only the last rank fails: first because its segment is too full even for its stripes, then because it
  // requests other blocks. All ranks get the error.
  const bool fails = bootstrap.rank() == bootstrap.size() - 1;
  WEFT_ASSIGN_OR_RETURN(std::byte * ballast, heap->Allocate(fails ? kSegmentBytes / 2 : 64));
  const std::vector<SharedBlockRequest> large(2 * node.size(), {node, kSegmentBytes / 2 + 64});
  EXPECT_THAT(ShareBlocks(bootstrap, *heap, large, kTestTimeout),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cannot allocate")));
  heap->Free(ballast);
  EXPECT_EQ(heap->allocated_bytes(), 0);

  const std::vector<SharedBlockRequest> foreign = {{{bootstrap.size()}, 64}};
  EXPECT_THAT(ShareBlocks(bootstrap, *heap, foreign, kTestTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("they must be ranks of the node")));
  if (bootstrap.node_map().RanksOf(bootstrap.node_map().node_of_rank.back()).size() == 1)
    return Barrier(bootstrap);
  const std::vector<SharedBlockRequest> listed(fails ? 1 : 2, {node, 64});
  EXPECT_THAT(ShareBlocks(bootstrap, *heap, listed, kTestTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("they must request the same blocks")));
  EXPECT_EQ(heap->allocated_bytes(), 0);
  return Barrier(bootstrap);
}

}  // namespace weft::testing
