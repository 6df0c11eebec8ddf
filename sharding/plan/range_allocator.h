// Hands out ranges of a block, first fit. What it gives depends on nothing but the calls before: ranks that
// make the same calls get the same ranges, without a word between them.
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

  // Where a free range of `bytes` (more than 0) begins, 64-byte aligned; none where there is none.
  std::optional<size_t> Take(size_t bytes);
  // A range that was taken, by where it begins.
  void Give(size_t begin);

  size_t capacity() const { return capacity_; }
  // Where the last range ever taken ended: a block of this size would have done for all of them.
  size_t high_water() const { return high_water_; }

 private:
  size_t capacity_;
  size_t high_water_ = 0;
  std::map<size_t, size_t> taken_;  // Ends by beginnings.
};

}  // namespace weft
