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
    : split_(split),
      ranges_(static_cast<size_t>(split.ranks())),
      runs_(static_cast<size_t>(split.ranks())),
      tokens_of_(static_cast<size_t>(split.ranks())) {}

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
  return layout;
}

absl::StatusOr<SequenceLayout> SequenceLayout::Contiguous(int64_t tokens, int ranks) {
  return Create({tokens}, {.outer = ranks});
}

absl::StatusOr<SequenceLayout> SequenceLayout::HeadTail(int64_t tokens, int ranks) {
  return Create({tokens}, {.outer = ranks, .order = SequenceOrder::kHeadTail});
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
  tokens_of_[static_cast<size_t>(rank)] += range.count;
  tokens_ += range.count;
}

bool SequenceLayout::is_in_order() const {
  int64_t next = 0;
  for (const std::vector<TokenRange>& ranges : ranges_) {
    for (const TokenRange& range : ranges) {
      if (range.begin != next) return false;
      next = range.end();
    }
  }
  return true;
}

std::shared_ptr<const SequenceParts> SequenceLayout::Parts(int own) const {
  return std::make_shared<SequenceParts>(SequenceParts{runs_, own});
}

}  // namespace weft
