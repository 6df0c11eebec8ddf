#include "context_parallel/layouts/run_slices.h"

#include <algorithm>

namespace weft {

TokenRange SeeingQueries(const AttentionMask& mask, const TokenRuns& queries, const TokenRuns& keys) {
  TokenRange seeing;
  int64_t start = 0;
  for (const TokenRun& run : queries) {
    const bool sees = std::any_of(keys.begin(), keys.end(), [&](const TokenRun& key_run) {
      return VisiblePairs(mask, run, key_run) > 0;
    });
    if (sees) {
      if (seeing.count == 0) seeing.begin = start;
      seeing.count = start + run.count - seeing.begin;
    }
    start += run.count;
  }
  return seeing;
}

SequenceParts OuterParts(const SequenceParts& sequence, int inner) {
  SequenceParts outer{.parts = std::vector<TokenRuns>(static_cast<size_t>(sequence.ranks() / inner)),
                      .own = sequence.own / inner};
  for (size_t rank = 0; rank < sequence.parts.size(); ++rank) {
    TokenRuns& runs = outer.parts[rank / static_cast<size_t>(inner)];
    runs.insert(runs.end(), sequence.parts[rank].begin(), sequence.parts[rank].end());
  }
  return outer;
}

}  // namespace weft
