// The keys that a query may attend to, as spans of key numbers. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/types/span.h>

#include "weft/nn/attention_mask.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft {

// Visible keys [begin, end) that have consecutive numbers and, from `rank` on, consecutive ranks: of two keys
// of a document, the one with the lower position has the lower rank.
struct VisibleSpan {
  int64_t begin, end;
  int64_t rank;
};

class VisibleKeys {
 public:
  VisibleKeys(const AttentionMask& mask, absl::Span<const KeyBlock> keys);

  // Replaces `spans` by those of the keys that a query of a document attends to, by ascending numbers.
  void SpansOf(int64_t document, int64_t position, std::vector<VisibleSpan>& spans) const;
  int64_t NumberOfRank(int64_t rank) const { return number_of_rank_[static_cast<size_t>(rank)]; }

 private:
  struct Run {
    TokenRun tokens;
    int64_t number;    // Number of the first key.
    int64_t rank = 0;  // Rank of the first key.
  };
  void AssignRanks(int64_t keys);

  AttentionMask mask_;
  absl::flat_hash_map<int64_t, std::vector<Run>> runs_of_document_;  // By ascending number.
  std::vector<int32_t> number_of_rank_;
};

}  // namespace weft
