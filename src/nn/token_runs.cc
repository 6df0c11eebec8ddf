#include "weft/nn/token_runs.h"

namespace weft {

int64_t TokenCount(const TokenRuns& runs) {
  int64_t count = 0;
  for (const TokenRun& run : runs) count += run.count;
  return count;
}

TokenRuns WholeSequence(int64_t tokens) { return {{.document = 0, .position = 0, .count = tokens}}; }

}  // namespace weft
