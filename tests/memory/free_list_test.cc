#include "src/memory/free_list.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::internal {
namespace {

TEST(FreeList, RoundsBlockSizesUpToWholeGranules) {
  EXPECT_EQ(FreeList::BlockBytes(0), 64);
  EXPECT_EQ(FreeList::BlockBytes(1), 64);
  EXPECT_EQ(FreeList::BlockBytes(64), 64);
  EXPECT_EQ(FreeList::BlockBytes(65), 128);
  EXPECT_EQ(FreeList::BlockBytes(UINT64_MAX), UINT64_MAX - 63);
}

TEST(FreeList, AllocatesInTheSmallestHoleThatFitsAtTheLowestOffset) {
  FreeList list(1024);
  std::vector<uint64_t> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(*list.Allocate(128));
  list.Free(blocks[1]);
  list.Free(blocks[4]);
  list.Free(blocks[6]);
  list.Free(blocks[7]);
  EXPECT_EQ(list.Allocate(100), blocks[1]);
  EXPECT_EQ(list.Allocate(100), blocks[4]);
  EXPECT_EQ(list.Allocate(256), blocks[6]);
  EXPECT_EQ(list.Allocate(1), std::nullopt);
}

TEST(FreeList, MergesFreedBlocksInEveryOrderOfFreeing) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    FreeList list(64 * 20 + 63);
    EXPECT_EQ(list.free_bytes(), 64 * 20);
    std::vector<uint64_t> blocks;
    while (const auto block = list.Allocate(1 + random() % 200)) blocks.push_back(*block);
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (const uint64_t block : blocks) list.Free(block);
    EXPECT_EQ(list.largest_hole(), 64 * 20);
    EXPECT_EQ(list.allocated_bytes(), 0);
  }
}

// Reference model: the allocated blocks, with checks that they are aligned and do not overlap.
class Model {
 public:
  void Add(uint64_t offset, uint64_t bytes) {
    ASSERT_EQ(offset % FreeList::kGranule, 0);
    const auto next = blocks_.lower_bound(offset);
    if (next != blocks_.end()) {
      ASSERT_LE(offset + bytes, next->first);
    }
    if (next != blocks_.begin()) {
      const auto before = std::prev(next);
      ASSERT_LE(before->first + before->second, offset);
    }
    blocks_.emplace(offset, bytes);
    allocated_ += bytes;
  }
  uint64_t RemoveRandomBlock(std::mt19937& random) {
    auto at = blocks_.begin();
    std::advance(at, random() % blocks_.size());
    const uint64_t offset = at->first;
    allocated_ -= at->second;
    blocks_.erase(at);
    return offset;
  }
  // Size of the longest range in [0, bytes) without a block.
  uint64_t LargestHole(uint64_t bytes) const {
    uint64_t largest = 0;
    uint64_t end = 0;
    for (const auto& [offset, size] : blocks_) {
      largest = std::max(largest, offset - end);
      end = offset + size;
    }
    return std::max(largest, bytes - end);
  }
  bool empty() const { return blocks_.empty(); }
  uint64_t allocated() const { return allocated_; }

 private:
  std::map<uint64_t, uint64_t> blocks_;
  uint64_t allocated_ = 0;
};

TEST(FreeList, NeverOverlapsBlocksInRandomUse) {
  constexpr uint64_t kBytes = 1 << 16;
  std::mt19937 random(7);
  FreeList list(kBytes);
  Model model;
  for (int step = 0; step < 20000; ++step) {
    // Alternates long phases of growth and of shrinkage, so that the list becomes both full and empty.
    const bool grow = (random() % 100 < 60) == (step / 1000 % 2 == 0);
    if (grow || model.empty()) {
      const uint64_t bytes = random() % 8 == 0 ? random() % 20000 : random() % 500;
      const uint64_t hole = model.LargestHole(kBytes);
      const auto offset = list.Allocate(bytes);
      ASSERT_EQ(offset.has_value(), FreeList::BlockBytes(bytes) <= hole);
      if (offset) {
        ASSERT_NO_FATAL_FAILURE(model.Add(*offset, FreeList::BlockBytes(bytes)));
      }
    } else {
      list.Free(model.RemoveRandomBlock(random));
    }
    ASSERT_EQ(list.allocated_bytes(), model.allocated());
    ASSERT_EQ(list.free_bytes(), kBytes - model.allocated());
    ASSERT_EQ(list.largest_hole(), model.LargestHole(kBytes));
  }
}

TEST(FreeListDeathTest, AbortsWhenFreeingABlockThatIsNotAllocated) {
  FreeList list(1024);
  const uint64_t block = *list.Allocate(100);
  EXPECT_DEATH(list.Free(block + 64), "not an allocated block");
  list.Free(block);
  EXPECT_DEATH(list.Free(block), "freed twice");
}

}  // namespace
}  // namespace weft::internal
