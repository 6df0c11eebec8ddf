#include "weft/nn/token_runs.h"

#include <algorithm>

namespace weft {

int64_t TokenCount(const TokenRuns& runs) {
  int64_t count = 0;
  for (const TokenRun& run : runs) count += run.count;
  return count;
}

TokenRuns SliceRuns(const TokenRuns& runs, int64_t begin, int64_t count) {
  TokenRuns slice;
  int64_t start = 0;
  for (const TokenRun& run : runs) {
    const int64_t first = std::max(begin, start);
    const int64_t end = std::min(begin + count, start + run.count);
    if (first < end) slice.push_back({run.document, run.position + first - start, end - first});
    start += run.count;
  }
  return slice;
}

TokenRuns WholeSequence(int64_t tokens) { return {{0, 0, tokens}}; }

std::vector<int64_t> Positions(const TokenRuns& runs) {
  std::vector<int64_t> positions;
  positions.reserve(static_cast<size_t>(TokenCount(runs)));
  for (const TokenRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) positions.push_back(run.position + i);
  }
  return positions;
}

int64_t PositionEnd(const TokenRuns& runs) {
  int64_t end = 0;
  for (const TokenRun& run : runs) {
    if (run.count > 0) end = std::max(end, run.position + run.count);
  }
  return end;
}

}  // namespace weft
