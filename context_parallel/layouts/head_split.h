// Heads of each rank of an inner (Ulysses) group, and the sequence parts that the outer level then has.
//
// Query heads are split evenly; the first ranks take the remainder, one each. With more ranks than heads the
// last ranks have none. A rank has the KV heads that its query heads read. If a split divides the query heads
// of one KV head, several ranks have that KV head.
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "weft/nn/token_runs.h"

namespace weft {

enum class AttentionRole : uint8_t { kQuery, kKey, kValue };
// "q", "k", "v".
std::string_view Name(AttentionRole role);

struct HeadRange {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t end() const { return begin + count; }
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

// True if several ranks have the same head. `heads`: one range per rank, in ascending order.
bool Overlap(const std::vector<HeadRange>& heads);

class HeadSplit {
 public:
  HeadSplit(int64_t heads, int64_t kv_heads, int ranks);

  int64_t group() const { return group_; }  // Query heads of each KV head.
  const std::vector<HeadRange>& queries() const { return queries_; }
  const std::vector<HeadRange>& keys() const { return keys_; }
  const std::vector<HeadRange>& Of(AttentionRole role) const {
    return role == AttentionRole::kQuery ? queries_ : keys_;
  }
  // Index of a rank's first query head among the query heads of its KV head: AttentionProblem::head_offset.
  int64_t HeadOffset(int rank) const;
  // True if several ranks have the same KV head.
  bool replicates() const { return Overlap(keys_); }

 private:
  int64_t group_;
  std::vector<HeadRange> queries_, keys_;  // [rank]
};

// Sequence parts of the outer level: the parts of each group of `inner` adjacent ranks, end to end. `own` of
// the result is the index of this rank's group.
SequenceParts OuterParts(const SequenceParts& sequence, int inner);

}  // namespace weft
