// Best-fit allocator over a range of offsets; it does not access memory.
//
// Adjacent free ranges ("holes") are merged.
//
// Thread safety: none; the owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace weft::internal {

class FreeList {
 public:
  static constexpr uint64_t kGranule = 64;
  // `bytes` rounded up to a multiple of kGranule; at least kGranule.
  static uint64_t BlockBytes(uint64_t bytes);

  // Manages [0, bytes), without an incomplete granule at the end.
  explicit FreeList(uint64_t bytes);

  // Returns the offset of a block of BlockBytes(bytes), or nullopt if no hole is large enough. Chooses the
  // smallest hole that fits, and among equal holes the one with the lowest offset. The same sequence of calls
  // therefore gives the same offsets.
  std::optional<uint64_t> Allocate(uint64_t bytes);
  // Frees a block by its offset, and returns its size.
  // REQUIRES: the block is allocated.
  uint64_t Free(uint64_t offset);

  uint64_t allocated_bytes() const { return allocated_bytes_; }
  uint64_t free_bytes() const { return free_bytes_; }
  // Free ranges, which do not touch: offset to size.
  const std::map<uint64_t, uint64_t>& holes() const { return by_offset_; }
  uint64_t largest_hole() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void AddHole(uint64_t offset, uint64_t bytes);
  void RemoveHole(uint64_t offset, uint64_t bytes);

  std::map<uint64_t, uint64_t> by_offset_;            // Holes: offset to size.
  std::set<std::pair<uint64_t, uint64_t>> by_size_;   // The same holes: (size, offset).
  std::unordered_map<uint64_t, uint64_t> allocated_;  // Allocated blocks: offset to size.
  uint64_t allocated_bytes_ = 0;
  uint64_t free_bytes_ = 0;
};

}  // namespace weft::internal
