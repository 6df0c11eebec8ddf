// The tokens of ranks, one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/context_parallel/sequence_layout.h"

namespace weft::testing {

// Indices in the sequence of a rank's tokens, in the rank's order.
inline std::vector<int64_t> TokensOfRank(const SequenceLayout& layout, int rank) {
  std::vector<int64_t> tokens;
  for (const TokenRange& range : layout.RangesOf(rank)) {
    for (int64_t token = range.begin; token < range.end(); ++token) tokens.push_back(token);
  }
  return tokens;
}

}  // namespace weft::testing
