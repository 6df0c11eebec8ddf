#include "weft/context_parallel/sequence_layout.h"

#include <algorithm>

#include "weft/core/status.h"

namespace weft {
namespace {

// Ranges of a document that one outer rank holds, in its order: one part, or a head and a tail.
std::vector<TokenRange> OuterRanges(int64_t length, const SequenceSplit& split, int outer) {
  if (split.order == SequenceOrder::kContiguous) return {EvenPart(length, split.outer, outer)};
  const int64_t chunks = int64_t{2} * split.outer;
  return {EvenPart(length, chunks, outer), EvenPart(length, chunks, chunks - 1 - outer)};
}

absl::Status CheckSplit(absl::Span<const int64_t> document_lengths, const SequenceSplit& split) {
  if (split.outer < 1 || split.inner < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a sequence cannot be split over ", split.outer, " x ",
                                                   split.inner, " ranks: each level needs at least one"));
  }
  if (document_lengths.empty()) {
    return absl::InvalidArgumentError(
        "a sequence without documents cannot be split: give at least one document length");
  }
  for (size_t document = 0; document < document_lengths.size(); ++document) {
    if (document_lengths[document] > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("document ", document, " of ", document_lengths.size(),
                                                   " has ", document_lengths[document],
                                                   " tokens: leave out empty documents"));
  }
  return absl::OkStatus();
}

}  // namespace

TokenRange EvenPart(int64_t tokens, int64_t parts, int64_t index) {
  const int64_t base = tokens / parts;
  const int64_t remainder = tokens % parts;
  return {.begin = index * base + std::min(index, remainder), .count = base + (index < remainder ? 1 : 0)};
}

int64_t EvenPartIndex(int64_t tokens, int64_t parts, int64_t token) {
  const int64_t base = tokens / parts;
  const int64_t remainder = tokens % parts;
  const int64_t in_larger = remainder * (base + 1);
  return token < in_larger ? token / (base + 1) : remainder + (token - in_larger) / base;
}

SequenceLayout::SequenceLayout(const SequenceSplit& split)
    : split_(split), ranges_(static_cast<size_t>(split.ranks())), runs_(static_cast<size_t>(split.ranks())) {}

absl::StatusOr<SequenceLayout> SequenceLayout::Create(absl::Span<const int64_t> document_lengths,
                                                      const SequenceSplit& split) {
  WEFT_RETURN_IF_ERROR(CheckSplit(document_lengths, split));
  SequenceLayout layout(split);
  std::vector<int64_t> pack_tokens(static_cast<size_t>(split.outer));
  for (const int64_t length : document_lengths) {
    for (int outer = 0; outer < split.outer; ++outer) {
      for (const TokenRange& part : OuterRanges(length, split, outer)) {
        pack_tokens[static_cast<size_t>(outer)] += part.count;
      }
    }
  }
  for (int outer = 0; outer < split.outer; ++outer) {
    const int64_t pack = pack_tokens[static_cast<size_t>(outer)];
    int64_t in_pack = 0;
    int64_t document_start = 0;
    for (size_t document = 0; document < document_lengths.size(); ++document) {
      for (TokenRange part : OuterRanges(document_lengths[document], split, outer)) {
        while (part.count > 0) {
          const int64_t inner = EvenPartIndex(pack, split.inner, in_pack);
          const int64_t count = std::min(part.count, EvenPart(pack, split.inner, inner).end() - in_pack);
          layout.Append(outer * split.inner + static_cast<int>(inner), {document_start + part.begin, count},
                        {static_cast<int64_t>(document), part.begin, count});
          in_pack += count;
          part = {part.begin + count, part.count - count};
        }
      }
      document_start += document_lengths[document];
    }
  }
  layout.BuildIndex();
  return layout;
}

absl::StatusOr<SequenceLayout> SequenceLayout::Contiguous(int64_t tokens, int ranks) {
  return Create({tokens}, {.outer = ranks});
}

absl::StatusOr<SequenceLayout> SequenceLayout::HeadTail(int64_t tokens, int ranks) {
  return Create({tokens}, {.outer = ranks, .order = SequenceOrder::kHeadTail});
}

absl::StatusOr<SequenceLayout> SequenceLayout::Documents(absl::Span<const int64_t> lengths, int outer,
                                                         int inner) {
  return Create(lengths, {.outer = outer, .inner = inner});
}

void SequenceLayout::Append(int rank, const TokenRange& range, const TokenRun& run) {
  auto& ranges = ranges_[static_cast<size_t>(rank)];
  if (!ranges.empty() && ranges.back().end() == range.begin) {
    ranges.back().count += range.count;
  } else {
    ranges.push_back(range);
  }
  auto& runs = runs_[static_cast<size_t>(rank)];
  if (!runs.empty() && runs.back().document == run.document &&
      runs.back().position + runs.back().count == run.position) {
    runs.back().count += run.count;
  } else {
    runs.push_back(run);
  }
}

void SequenceLayout::BuildIndex() {
  starts_.push_back(0);
  for (int rank = 0; rank < ranks(); ++rank) {
    int64_t index = 0;
    for (const TokenRange& range : RangesOf(rank)) {
      by_rank_order_.push_back({range, rank, index});
      index += range.count;
    }
    starts_.push_back(starts_.back() + index);
  }
  tokens_ = starts_.back();
  by_token_ = by_rank_order_;
  std::sort(by_token_.begin(), by_token_.end(),
            [](const Piece& a, const Piece& b) { return a.range.begin < b.range.begin; });
}

int64_t SequenceLayout::TokensOf(int rank) const {
  return starts_[static_cast<size_t>(rank) + 1] - starts_[static_cast<size_t>(rank)];
}

bool SequenceLayout::is_in_order() const {
  return std::is_sorted(by_rank_order_.begin(), by_rank_order_.end(),
                        [](const Piece& a, const Piece& b) { return a.range.begin < b.range.begin; });
}

std::shared_ptr<const SequenceParts> SequenceLayout::Parts(int own) const {
  return std::make_shared<SequenceParts>(SequenceParts{runs_, own});
}

std::vector<int64_t> SequenceLayout::PositionIds(int rank) const { return Positions(RunsOf(rank)); }

SequenceLayout::Location SequenceLayout::LocationOf(int64_t token) const {
  WEFT_CHECK(token >= 0 && token < tokens_, "a token index outside the sequence");
  const auto after =
      std::upper_bound(by_token_.begin(), by_token_.end(), token,
                       [](int64_t wanted, const Piece& piece) { return wanted < piece.range.begin; });
  const Piece& piece = *std::prev(after);
  return {.rank = piece.rank, .index = piece.index + token - piece.range.begin};
}

int64_t SequenceLayout::RankOrderOf(int64_t token) const {
  const Location location = LocationOf(token);
  return starts_[static_cast<size_t>(location.rank)] + location.index;
}

int64_t SequenceLayout::TokenOfRankOrder(int64_t index) const {
  WEFT_CHECK(index >= 0 && index < tokens_, "a rank-order index outside the sequence");
  const auto first = [this](const Piece& piece) {
    return starts_[static_cast<size_t>(piece.rank)] + piece.index;
  };
  const auto after =
      std::upper_bound(by_rank_order_.begin(), by_rank_order_.end(), index,
                       [&](int64_t wanted, const Piece& piece) { return wanted < first(piece); });
  const Piece& piece = *std::prev(after);
  return piece.range.begin + index - first(piece);
}

int64_t SequenceLayout::TokenAt(const Location& location) const {
  WEFT_CHECK(location.index >= 0 && location.index < TokensOf(location.rank),
             "an index outside the tokens of its rank");
  return TokenOfRankOrder(starts_[static_cast<size_t>(location.rank)] + location.index);
}

}  // namespace weft
