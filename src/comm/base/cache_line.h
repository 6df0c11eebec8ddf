// Size of a cache line.
#pragma once

#include <cstddef>

namespace weft {

inline constexpr size_t kLineBytes = 64;

constexpr size_t RoundUpToCacheLine(size_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

}  // namespace weft
