#include "src/comm/copy_bytes.h"

#include <unistd.h>

#include <algorithm>

namespace weft {
namespace {

size_t LastLevelCacheBytes() {
  // Where the system does not say: large enough that only clearly uncacheable results are streamed.
  constexpr size_t kUnknown = size_t{64} << 20;
  static const size_t bytes = [] {
    const long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const long largest = std::max(level2, level3);
    return largest > 0 ? static_cast<size_t>(largest) : kUnknown;
  }();
  return bytes;
}

}  // namespace

bool WritesAroundCaches(size_t bytes) { return bytes > LastLevelCacheBytes(); }

}  // namespace weft
