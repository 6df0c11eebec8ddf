// Which rank computes the loss of which windows of the evaluation data. Pure.
//
// Note [The same loss on every mesh]
// Windows are taken in passes whose shape depends on the sequence length alone, never on the mesh, and ranks
// take whole passes, in contiguous parts. So each pass has the same loss wherever it is computed, and the sum
// over passes, in their order, has the same bits on every mesh that has the same weights and threads a rank.
// Where ranks share sequences, each has its tokens' part of a pass's loss: that is so among meshes that split
// sequences alike, and between ways to split them up to rounding.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/train/batch_order.h"

namespace weft {

struct EvaluationPlan {
  int64_t windows;  // At least 1.
  int64_t seq_len;
  int ranks;        // Data-parallel ones.
  int context = 1;  // Ranks that share the sequences of one of them.

  int64_t targets() const { return windows * seq_len; }
  int64_t windows_per_pass() const;
  int64_t passes() const { return (windows + windows_per_pass() - 1) / windows_per_pass(); }

  // The passes of one rank: [PassOf(rank), PassOf(rank + 1)). All ranks run `rounds` forwards, since forwards
  // are collective; those without a pass left run an empty one.
  int64_t PassOf(int rank) const { return passes() * rank / ranks; }
  int64_t rounds() const { return (passes() + ranks - 1) / ranks; }

  int64_t PassesOf(int rank) const { return PassOf(rank + 1) - PassOf(rank); }

  // The windows of pass `round` of this rank; none where it has no more.
  SequenceRange Windows(int rank, int64_t round) const;

  // Every part of every pass has a loss. They lie by rank, the ranks that share sequences one after the
  // other: where those of part `part` of a data-parallel rank begin.
  int64_t losses() const { return passes() * context; }
  int64_t LossesOf(int rank, int part) const { return PassOf(rank) * context + PassesOf(rank) * part; }
  // Their sum, in the order of passes and of the parts of each.
  double Sum(absl::Span<const double> losses) const;
};

}  // namespace weft
