#include "sharding/plan/range_allocator.h"

#include <algorithm>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

std::optional<size_t> RangeAllocator::Allocate(size_t bytes) {
  WEFT_CHECK(bytes > 0, "an empty range cannot be allocated");
  size_t begin = 0;
  for (const auto& [next, end] : allocated_) {
    if (next - begin >= bytes) break;
    begin = (end + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (begin > capacity_ || capacity_ - begin < bytes) return std::nullopt;
  allocated_.emplace(begin, begin + bytes);
  high_water_ = std::max(high_water_, begin + bytes);
  return begin;
}

void RangeAllocator::Free(size_t begin) {
  WEFT_CHECK(allocated_.erase(begin) == 1, "a range is freed that was not allocated");
}

}  // namespace weft
