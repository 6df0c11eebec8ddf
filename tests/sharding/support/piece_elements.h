// Elements of a shard piece.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/sharding/flat_layout.h"

namespace weft::testing {

// Row-major indices of the piece's elements in its parameter, in the order of the shard.
inline std::vector<int64_t> ElementsOf(const ShardPiece& piece) {
  std::vector<int64_t> elements;
  for (int64_t run = 0; run < piece.runs; ++run) {
    for (int64_t i = 0; i < piece.run_length; ++i)
      elements.push_back(piece.start + run * piece.run_stride + i);
  }
  return elements;
}

}  // namespace weft::testing
