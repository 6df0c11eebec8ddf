// Which parts of a range are taken: best fit, neighbours merged when they are given back. Offsets only, no
// memory.
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
  // `bytes` rounded up to whole granules, at least one.
  static uint64_t BlockBytes(uint64_t bytes);

  // The range [0, bytes), less an incomplete granule at its end.
  explicit FreeList(uint64_t bytes);

  // Offset of a block of BlockBytes(bytes); nothing if no hole is that large. The smallest hole that is, and
  // the lowest of those, so that equal requests in equal order get equal offsets.
  std::optional<uint64_t> Take(uint64_t bytes);
  // Gives back what Take returned; returns the size of the block.
  uint64_t Give(uint64_t offset);

  uint64_t taken_bytes() const { return taken_bytes_; }
  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest_hole() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void AddHole(uint64_t offset, uint64_t bytes);
  void RemoveHole(uint64_t offset, uint64_t bytes);

  std::map<uint64_t, uint64_t> by_offset_;           // Holes: offset to size.
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // The same holes: size, offset.
  std::unordered_map<uint64_t, uint64_t> taken_;     // Blocks: offset to size.
  uint64_t taken_bytes_ = 0;
  uint64_t free_bytes_ = 0;
};

}  // namespace weft::internal
