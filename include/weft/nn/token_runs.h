// Which tokens of which documents a tensor's token dim holds, in its order: what positions and masks are
// computed from, so that tokens need not lie in the order of the sequence. The same for every row of a batch.
//
// Pure. Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// Consecutive tokens of one document. A count of 0 is allowed, and says nothing.
struct TokenRun {
  int64_t document = 0;  // A number: tokens of different ones never see each other.
  int64_t position = 0;  // Of the first token, from the document's start.
  int64_t count = 0;

  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};
using TokenRuns = std::vector<TokenRun>;

int64_t TokenCount(const TokenRuns& runs);

// Those of the tokens [begin, begin + count), counted through the runs.
TokenRuns SliceRuns(const TokenRuns& runs, int64_t begin, int64_t count);

// One document from position 0.
TokenRuns WholeSequence(int64_t tokens);

// The position of each token in its document.
std::vector<int64_t> Positions(const TokenRuns& runs);

// One more than the largest position; 0 without tokens.
int64_t PositionEnd(const TokenRuns& runs);

// How a sequence lies over the ranks that share it: runs by rank, and which are this rank's. One part: not
// split.
struct SequenceParts {
  std::vector<TokenRuns> parts;
  int own = 0;

  const TokenRuns& runs() const { return parts[static_cast<size_t>(own)]; }
  int ranks() const { return static_cast<int>(parts.size()); }
};

}  // namespace weft
