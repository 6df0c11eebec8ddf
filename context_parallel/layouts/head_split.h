// Which heads each rank of a Ulysses group has. Query heads are cut evenly, the remainder one each to the
// first ranks; with more ranks than heads the last ones have none. A rank has the kv heads that its query
// heads read, so that kv heads of a group that is cut are on several ranks.
//
// Pure. Thread safety: a value.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/context_parallel/attention_parallel.h"

namespace weft {

struct HeadRange {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t end() const { return begin + count; }
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

// Whether any head is in the ranges of several ranks. Ranges by rank, in the order of heads.
bool Overlap(const std::vector<HeadRange>& heads);

class HeadSplit {
 public:
  HeadSplit(int64_t heads, int64_t kv_heads, int ranks);

  int64_t group() const { return group_; }  // Query heads a kv head.
  const std::vector<HeadRange>& queries() const { return queries_; }
  const std::vector<HeadRange>& keys() const { return keys_; }
  const std::vector<HeadRange>& Of(AttentionRole role) const {
    return role == AttentionRole::kQuery ? queries_ : keys_;
  }
  // Of a rank's first query head within its group: AttentionProblem::head_offset.
  int64_t HeadOffset(int rank) const;
  // Whether several ranks have the same kv head.
  bool replicates() const { return Overlap(keys_); }

 private:
  int64_t group_;
  std::vector<HeadRange> queries_, keys_;  // By rank.
};

}  // namespace weft
