// Which rank holds which tokens of a sequence, and in what order: the rule by which batches are split, and
// from which positions, masks and the sizes of exchanges follow.
//
// A sequence is a pack of documents, end to end. Ranks are arranged as outer x inner (rank = outer index *
// inner ranks + inner index; inner ranks are adjacent), and the split has two levels:
//
//   - every document is split over the outer ranks, *contiguously* (the i-th part to outer rank i) or
//     *head-tail* (2 * outer chunks; outer rank r holds chunks r and 2 * outer - 1 - r, so that under a
//     causal mask all have the same work). A document shorter than the outer ranks leaves some of them
//     without any;
//   - what an outer rank holds, one document's part after the other's, is split contiguously, as a whole,
//     over the inner ranks.
//
// Remainders go one each to the first parts, or chunks, of every split: 10 tokens over 2 x 2 ranks are 3, 2,
// 3, 2. Ulysses is all inner, gather and ring are all outer, hybrids are both: ContextScheme::Split says
// which.
//
// A token has a *place* in the sequence (0 to tokens() - 1), a rank and an index there, and a place in *rank
// order*: where it lies when the ranks' tokens are put end to end, as an all-gather does. Maps between these
// are computed, not tabulated: O(log ranges).
//
// Pure: every rank builds the same layout from the same numbers. Thread safety: a value.
#pragma once

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
  SequenceOrder order = SequenceOrder::kContiguous;  // Of the outer level.

  int ranks() const { return outer * inner; }
};

// Tokens [begin, begin + count) of the whole sequence's order.
struct TokenRange {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t end() const { return begin + count; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// Part `index` of `tokens` split into `parts`, the remainder one each to the first; and the part in which a
// token lies.
TokenRange EvenPart(int64_t tokens, int64_t parts, int64_t index);
int64_t EvenPartOf(int64_t tokens, int64_t parts, int64_t token);

class SequenceLayout {
 public:
  // Errors, of all that make one: kInvalidArgument (a level without ranks; no document; a document without
  // tokens, with its number).
  static absl::StatusOr<SequenceLayout> Create(absl::Span<const int64_t> document_lengths,
                                               const SequenceSplit& split);
  // One document over one level of ranks.
  static absl::StatusOr<SequenceLayout> Contiguous(int64_t tokens, int ranks);
  static absl::StatusOr<SequenceLayout> HeadTail(int64_t tokens, int ranks);
  // A pack, every document of which is contiguous over the outer ranks.
  static absl::StatusOr<SequenceLayout> Documents(absl::Span<const int64_t> lengths, int outer, int inner);

  int ranks() const { return split_.ranks(); }
  const SequenceSplit& split() const { return split_; }
  int64_t tokens() const { return tokens_; }
  int64_t TokensOf(int rank) const;
  int64_t MostTokens() const;  // Of any rank.

  // What a rank holds, in its order: as ranges of the sequence, and as runs of documents. None is empty, and
  // neighbours are merged.
  const std::vector<TokenRange>& RangesOf(int rank) const { return ranges_[static_cast<size_t>(rank)]; }
  const TokenRuns& RunsOf(int rank) const { return runs_[static_cast<size_t>(rank)]; }
  // What attention needs to know on rank `own`.
  std::shared_ptr<const SequenceParts> Parts(int own) const;

  // Positions within their documents, of a rank's tokens in its order.
  std::vector<int64_t> PositionIds(int rank) const;

  struct Place {
    int rank;
    int64_t index;
    friend bool operator==(const Place&, const Place&) = default;
  };
  // Inverse of each other; `token` is a place in the sequence.
  Place PlaceOf(int64_t token) const;
  int64_t TokenAt(const Place& place) const;
  // Likewise, with places in rank order.
  int64_t RankOrderOf(int64_t token) const;
  int64_t TokenOfRankOrder(int64_t at) const;

 private:
  // A range, where it lies, and the first index it has there.
  struct Piece {
    TokenRange range;
    int rank;
    int64_t index;
  };

  explicit SequenceLayout(const SequenceSplit& split);
  void Add(int rank, const TokenRange& range, const TokenRun& run);
  void Finish();

  SequenceSplit split_;
  int64_t tokens_ = 0;
  std::vector<std::vector<TokenRange>> ranges_;  // By rank.
  std::vector<TokenRuns> runs_;                  // By rank.
  std::vector<int64_t> starts_;                  // Of each rank in rank order; then the number of tokens.
  std::vector<Piece> by_token_;                  // All ranges, ascending in the sequence.
  std::vector<Piece> by_rank_order_;             // The same, ascending in rank order.
};

}  // namespace weft
