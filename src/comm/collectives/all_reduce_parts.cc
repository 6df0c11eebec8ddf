#include "weft/comm/all_reduce_parts.h"

#include <algorithm>

namespace weft {

std::vector<int64_t> AllReduceParts(int64_t elements, int ranks, DType dtype) {
  constexpr int64_t kLineBytes = 64;
  const int64_t line = kLineBytes / static_cast<int64_t>(SizeOf(dtype));
  const int64_t lines = (elements + line - 1) / line;
  const int64_t part = (lines + ranks - 1) / ranks * line;
  std::vector<int64_t> counts(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    counts[static_cast<size_t>(rank)] = std::clamp<int64_t>(elements - rank * part, 0, part);
  }
  return counts;
}

}  // namespace weft
