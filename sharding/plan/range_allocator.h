// First-fit allocator of ranges of a block.
//
// A result depends only on the calls before it: ranks that make the same calls get the same ranges.
//
// Pure. Thread safety: none.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <optional>

namespace weft {

class RangeAllocator {
 public:
  explicit RangeAllocator(size_t capacity = std::numeric_limits<size_t>::max()) : capacity_(capacity) {}

  // Allocates a range and returns its offset, 64-byte aligned; null if none is free. REQUIRES: bytes > 0.
  std::optional<size_t> Allocate(size_t bytes);
  // Frees the range at offset `begin`. REQUIRES: it is allocated.
  void Free(size_t begin);

  size_t capacity() const { return capacity_; }
  // Largest end of any range so far: a block of this size holds all of them.
  size_t high_water() const { return high_water_; }

 private:
  size_t capacity_;
  size_t high_water_ = 0;
  std::map<size_t, size_t> allocated_;  // End of each range, by its offset.
};

}  // namespace weft
