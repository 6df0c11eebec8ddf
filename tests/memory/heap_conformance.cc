#include "tests/memory/heap_conformance.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "weft/memory/node_heap.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
constexpr size_t kSegmentBytes = size_t{3} << 20;

absl::Status Barrier(Bootstrap& bootstrap) {
  return AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout);
}

struct Block {
  std::byte* data;
  size_t bytes;
  std::byte mark;
};

bool Holds(const std::byte* data, size_t bytes, std::byte mark) {
  return std::all_of(data, data + bytes, [mark](std::byte value) { return value == mark; });
}

void CheckBlock(const NodeHeap& heap, const Block& block, int rank) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % 64, 0);
  const auto address = heap.AddressOf(block.data, block.bytes);
  ASSERT_TRUE(address);
  EXPECT_EQ(address->rank, rank);
  EXPECT_EQ(heap.Resolve(*address), block.data);
  // A range that ends past the segment has no address.
  EXPECT_TRUE(heap.AddressOf(block.data, heap.segment_bytes() - address->offset));
  EXPECT_FALSE(heap.AddressOf(block.data, heap.segment_bytes() - address->offset + 1));
}

absl::StatusOr<std::vector<Block>> AllocateAndFreeAtRandom(NodeHeap& heap, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::vector<Block> blocks;
  size_t peak = 0;
  for (int step = 0; step < 200; ++step) {
    if (random() % 3 != 0 && heap.allocated_bytes() < kSegmentBytes / 2) {
      Block block{nullptr, 1 + random() % 10000, static_cast<std::byte>(random())};
      WEFT_ASSIGN_OR_RETURN(block.data, heap.Allocate(block.bytes));
      CheckBlock(heap, block, rank);
      std::memset(block.data, static_cast<int>(block.mark), block.bytes);
      blocks.push_back(block);
      peak = std::max(peak, heap.allocated_bytes());
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      EXPECT_TRUE(Holds(blocks.back().data, blocks.back().bytes, blocks.back().mark));
      heap.Free(blocks.back().data);
      blocks.pop_back();
    }
  }
  EXPECT_EQ(heap.peak_bytes(), peak);
  return blocks;
}

// "offset bytes mark" of each block, separated by commas, so that a peer can check the blocks.
std::string Announce(const NodeHeap& heap, const std::vector<Block>& blocks) {
  std::string text;
  for (const Block& block : blocks) {
    absl::StrAppend(&text, heap.AddressOf(block.data)->offset, " ", block.bytes, " ",
                    static_cast<int>(block.mark), ",");
  }
  return text;
}

absl::Status CheckAnnounced(const NodeHeap& heap, int rank, const std::string& announcement) {
  for (const absl::string_view item : absl::StrSplit(announcement, ',', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(item, ' ');
    NodeAddress address{rank, 0};
    uint64_t bytes = 0;
    int mark = 0;
    if (!absl::SimpleAtoi(words[0], &address.offset) || !absl::SimpleAtoi(words[1], &bytes) ||
        !absl::SimpleAtoi(words[2], &mark)) {
      return absl::InternalError("expected \"offset bytes mark\", got something else");
    }
    EXPECT_TRUE(Holds(heap.Resolve(address), bytes, static_cast<std::byte>(mark)))
        << "block of rank " << rank;
    EXPECT_EQ(heap.AddressOf(heap.Resolve(address)), address);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BlocksDoNotOverlapAndAreVisibleToTheNode(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = kSegmentBytes,
                                                                      .timeout = kTestTimeout}));
  EXPECT_EQ(heap->segment_bytes(), kSegmentBytes);
  WEFT_ASSIGN_OR_RETURN(const auto blocks, AllocateAndFreeAtRandom(*heap, bootstrap.rank()));
  WEFT_ASSIGN_OR_RETURN(const auto announced, bootstrap.AllGatherBlob(Announce(*heap, blocks), kTestTimeout));
  for (const int rank : bootstrap.node_map().RanksOf(bootstrap.node())) {
    WEFT_RETURN_IF_ERROR(CheckAnnounced(*heap, rank, announced[rank]));
  }
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  for (const Block& block : blocks) heap->Free(block.data);
  EXPECT_EQ(heap->allocated_bytes(), 0);
  EXPECT_FALSE(heap->AddressOf(&bootstrap));
  return Barrier(bootstrap);
}

absl::Status AFullHeapReturnsAnError(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = kSegmentBytes,
                                                                      .timeout = kTestTimeout}));
  WEFT_ASSIGN_OR_RETURN(std::byte * first, heap->Allocate(kSegmentBytes / 2));
  WEFT_ASSIGN_OR_RETURN(std::byte * second, heap->Allocate(kSegmentBytes / 4));
  heap->Free(first);
  EXPECT_THAT(
      heap->Allocate(kSegmentBytes / 2 + 64),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr(absl::StrCat("rank ", bootstrap.rank())),
                     HasSubstr("cannot allocate 1572928 bytes"), HasSubstr("2359296 of 3145728 are free"),
                     HasSubstr("largest free range has 1572864"),
                     HasSubstr("NodeHeap::Options::segment_bytes or, under PyTorch, WEFT_SEGMENT_BYTES"))));
  EXPECT_THAT(heap->Allocate(SIZE_MAX), StatusIs(absl::StatusCode::kResourceExhausted, ::testing::_));
  heap->Free(second);
  WEFT_ASSIGN_OR_RETURN(std::byte * whole, heap->Allocate(kSegmentBytes));
  EXPECT_EQ(heap->allocated_bytes(), kSegmentBytes);
  heap->Free(whole);
  return Barrier(bootstrap);
}

absl::Status RanksChooseTheSameDefaultSize(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.timeout = kTestTimeout}));
  WEFT_ASSIGN_OR_RETURN(const auto sizes,
                        bootstrap.AllGatherBlob(absl::StrCat(heap->segment_bytes()), kTestTimeout));
  EXPECT_THAT(sizes, ::testing::Each(sizes.front()));
  EXPECT_EQ(heap->segment_bytes() % (2 << 20), 0);
  WEFT_ASSIGN_OR_RETURN(std::byte * block, heap->Allocate(1 << 20));
  std::memset(block, 1, 1 << 20);
  heap->Free(block);
  return Barrier(bootstrap);
}

absl::Status RanksUseTheSmallestRequestedSize(Bootstrap& bootstrap) {
  const size_t own = kSegmentBytes + static_cast<size_t>(bootstrap.rank()) * 4096;
  {
    WEFT_ASSIGN_OR_RETURN(const auto heap,
                          NodeHeap::Create(bootstrap, {.segment_bytes = own, .timeout = kTestTimeout}));
    EXPECT_EQ(heap->segment_bytes(), kSegmentBytes);
  }
  // Rank 0 leaves the choice to the heap. The size that others request stays as it is.
  for (const size_t requested : {kSegmentBytes, size_t{1'000'000}}) {
    const size_t bytes = bootstrap.rank() == 0 && bootstrap.size() > 1 ? 0 : requested;
    WEFT_ASSIGN_OR_RETURN(const auto heap,
                          NodeHeap::Create(bootstrap, {.segment_bytes = bytes, .timeout = kTestTimeout}));
    EXPECT_EQ(heap->segment_bytes(), requested);
  }
  EXPECT_THAT(NodeHeap::Create(bootstrap, {.segment_bytes = size_t{1} << 50, .timeout = kTestTimeout}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("free on the node")));
  return Barrier(bootstrap);
}

}  // namespace weft::testing
