#include "sharding/plan/range_allocator.h"

#include <algorithm>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

std::optional<size_t> RangeAllocator::Take(size_t bytes) {
  WEFT_CHECK(bytes > 0, "an empty range lies nowhere");
  size_t begin = 0;
  for (const auto& [next, end] : taken_) {
    if (next - begin >= bytes) break;
    begin = (end + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (begin > capacity_ || capacity_ - begin < bytes) return std::nullopt;
  taken_.emplace(begin, begin + bytes);
  high_water_ = std::max(high_water_, begin + bytes);
  return begin;
}

void RangeAllocator::Give(size_t begin) {
  WEFT_CHECK(taken_.erase(begin) == 1, "a range is given back that was not taken");
}

}  // namespace weft
