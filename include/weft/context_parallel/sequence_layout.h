// Assignment of a sequence's tokens to ranks: which rank holds which tokens, in which order. Batches are
// split by it; positions, masks and the sizes of exchanges follow from it.
//
// A sequence is a pack of documents, end to end. The ranks form two levels, outer x inner: rank = outer index
// * inner ranks + inner index, so that inner ranks are adjacent. The split has two levels too:
//
//   - Every document is split over the outer ranks. *Contiguous*: outer rank i holds part i. *Head-tail*
//     (zigzag): the document has 2 * outer chunks, and outer rank r holds chunks r and 2 * outer - 1 - r, so
//     that a causal mask gives all ranks the same work. If a document is shorter than the number of outer
//     ranks, some of them hold none of it.
//   - An outer rank's parts of all documents, end to end, are split contiguously over the inner ranks.
//
// Every split gives its remainder to the first parts or chunks, one token each: 10 tokens over 2 x 2 ranks
// are 3, 2, 3, 2. For Ulysses all ranks are inner, for gather and ring all are outer, hybrids have both
// levels: ContextScheme::Split returns the split of a scheme.
//
// In *rank order* the ranks' tokens lie end to end, as an all-gather returns them.
//
// Pure: every rank builds the same layout from the same numbers. Thread safety: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/nn/token_runs.h"

namespace weft {

enum class SequenceOrder : uint8_t { kContiguous, kHeadTail };

struct SequenceSplit {
  int outer = 1;
  int inner = 1;
  SequenceOrder order = SequenceOrder::kContiguous;  // On the outer level.

  int ranks() const { return outer * inner; }
};

// Tokens [begin, begin + count) of the sequence.
struct TokenRange {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t end() const { return begin + count; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// Part `index` of `tokens` split evenly into `parts`; the first parts take the remainder, one token each.
TokenRange EvenPart(int64_t tokens, int64_t parts, int64_t index);
// Index of the part that contains `token`.
int64_t EvenPartIndex(int64_t tokens, int64_t parts, int64_t token);

class SequenceLayout {
 public:
  // Errors of all factories: kInvalidArgument (a level without ranks; no document; an empty document, by
  // number).
  static absl::StatusOr<SequenceLayout> Create(absl::Span<const int64_t> document_lengths,
                                               const SequenceSplit& split);
  // One document over one level of ranks.
  static absl::StatusOr<SequenceLayout> Contiguous(int64_t tokens, int ranks);
  static absl::StatusOr<SequenceLayout> HeadTail(int64_t tokens, int ranks);

  int ranks() const { return split_.ranks(); }
  const SequenceSplit& split() const { return split_; }
  int64_t tokens() const { return tokens_; }
  int64_t TokensOf(int rank) const { return tokens_of_[static_cast<size_t>(rank)]; }
  // True if rank order is the order of the sequence.
  bool is_in_order() const;

  // Tokens of a rank in its order, as ranges of the sequence and as runs of documents. Ranges and runs are
  // not empty; adjacent ones are merged.
  const std::vector<TokenRange>& RangesOf(int rank) const { return ranges_[static_cast<size_t>(rank)]; }
  const TokenRuns& RunsOf(int rank) const { return runs_[static_cast<size_t>(rank)]; }
  // The runs of all ranks, as input of Invocation::SetSequence on rank `own`.
  std::shared_ptr<const SequenceParts> Parts(int own) const;

 private:
  explicit SequenceLayout(const SequenceSplit& split);
  void Append(int rank, const TokenRange& range, const TokenRun& run);

  SequenceSplit split_;
  int64_t tokens_ = 0;
  std::vector<std::vector<TokenRange>> ranges_;  // [rank]
  std::vector<TokenRuns> runs_;                  // [rank]
  std::vector<int64_t> tokens_of_;               // [rank]
};

}  // namespace weft
