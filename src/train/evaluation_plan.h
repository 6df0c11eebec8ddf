// Which rank computes the loss of which windows of the evaluation data. Pure.
//
// Note [The same loss on every mesh]
// Windows are taken in passes whose shape depends on the sequence length alone, never on the mesh, and ranks
// take whole passes, in contiguous parts. So each pass has the same loss wherever it is computed, and the sum
// over passes, in their order, has the same bits on every mesh that has the same weights and threads a rank.
#pragma once

#include <cstdint>

#include "weft/train/batch_order.h"

namespace weft {

struct EvaluationPlan {
  int64_t windows;  // At least 1.
  int64_t seq_len;
  int ranks;

  int64_t targets() const { return windows * seq_len; }
  int64_t windows_per_pass() const;
  int64_t passes() const { return (windows + windows_per_pass() - 1) / windows_per_pass(); }

  // The passes of one rank: [PassOf(rank), PassOf(rank + 1)). All ranks run `rounds` forwards, since forwards
  // are collective; those without a pass left run an empty one.
  int64_t PassOf(int rank) const { return passes() * rank / ranks; }
  int64_t rounds() const { return (passes() + ranks - 1) / ranks; }

  // The windows of pass `round` of this rank; none where it has no more.
  SequenceRange Windows(int rank, int64_t round) const;
};

}  // namespace weft
