// Description of a tensor's token dim as runs of consecutive tokens: the document and the position of each
// token, in the tensor's order. Positions and masks are derived from the runs, so that tokens may be in any
// order. All rows of a batch have the same runs.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// Consecutive tokens of one document. A count of 0 is allowed and has no effect.
struct TokenRun {
  int64_t document = 0;  // Id of the document. Tokens attend only within their document.
  int64_t position = 0;  // Index of the first token in the document.
  int64_t count = 0;

  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};
using TokenRuns = std::vector<TokenRun>;

int64_t TokenCount(const TokenRuns& runs);

// The runs of tokens [begin, begin + count). Tokens are counted over all runs in order.
TokenRuns SliceRuns(const TokenRuns& runs, int64_t begin, int64_t count);

// One document from position 0.
TokenRuns WholeSequence(int64_t tokens);

// The position of each token in its document.
std::vector<int64_t> Positions(const TokenRuns& runs);

// The largest position plus 1; 0 without tokens.
int64_t PositionEnd(const TokenRuns& runs);

// Division of a sequence over the ranks that share it. A sequence with one part is not split.
struct SequenceParts {
  std::vector<TokenRuns> parts;  // One entry per rank.
  int own = 0;                   // Index of this rank's part.

  const TokenRuns& runs() const { return parts[static_cast<size_t>(own)]; }
  int ranks() const { return static_cast<int>(parts.size()); }
};

}  // namespace weft
