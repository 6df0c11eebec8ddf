#include "context_parallel/layouts/head_split.h"

#include <array>

#include "weft/context_parallel/sequence_layout.h"

namespace weft {

std::string_view Name(AttentionRole role) {
  constexpr std::array<std::string_view, 3> kNames = {"q", "k", "v"};
  return kNames[static_cast<size_t>(role)];
}

HeadSplit::HeadSplit(int64_t heads, int64_t kv_heads, int ranks) : group_(heads / kv_heads) {
  for (int rank = 0; rank < ranks; ++rank) {
    const TokenRange part = EvenPart(heads, ranks, rank);
    queries_.push_back({part.begin, part.count});
    const int64_t first = part.begin / group_;
    const int64_t end = (part.end() + group_ - 1) / group_;
    keys_.push_back(part.count == 0 ? HeadRange{.begin = kv_heads} : HeadRange{first, end - first});
  }
}

int64_t HeadSplit::HeadOffset(int rank) const { return queries_[static_cast<size_t>(rank)].begin % group_; }

bool Overlap(const std::vector<HeadRange>& heads) {
  for (size_t rank = 1; rank < heads.size(); ++rank) {
    if (heads[rank].begin < heads[rank - 1].end()) return true;
  }
  return false;
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
