// Assignment of evaluation windows to passes and data-parallel ranks. Pure.
//
// Note [The same loss on every mesh]
// Problem: the bits of a floating-point sum depend on its terms and their order, which a mesh could change.
// Rule: windows are grouped into passes whose shape depends only on the sequence length. Each data-parallel
//   rank computes a contiguous range of whole passes. The losses of passes are added in the order of passes.
// Why it suffices: a pass has the same loss on every rank with the same weights and number of threads, so the
//   sum has the same bits on every mesh. Ranks that share sequences each have the loss of their own tokens of
//   a pass, so meshes that split sequences alike give the same bits; other splits differ by rounding.
// Without it: losses of different meshes could not be compared exactly.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/train/batch_order.h"

namespace weft {

struct EvaluationPlan {
  int64_t windows;  // At least 1.
  int64_t seq_len;
  int ranks;        // Data-parallel ranks.
  int context = 1;  // Ranks that share the sequences of one data-parallel rank.

  int64_t windows_per_pass() const;
  int64_t passes() const { return (windows + windows_per_pass() - 1) / windows_per_pass(); }

  // A data-parallel rank has the passes [FirstPass(rank), FirstPass(rank + 1)). Forward is collective, so
  // every rank runs rounds() passes; a rank that has no pass left runs an empty one.
  int64_t FirstPass(int rank) const { return passes() * rank / ranks; }
  int64_t rounds() const { return (passes() + ranks - 1) / ranks; }

  int64_t PassCount(int rank) const { return FirstPass(rank + 1) - FirstPass(rank); }

  // The windows of a rank's pass number `round`; none if the rank has no such pass.
  SequenceRange Windows(int rank, int64_t round) const;

  // Each of the `context` parts of a pass has a loss. Losses are ordered by data-parallel rank, then by part,
  // then by pass. FirstLoss is the position of the first loss of a part.
  int64_t losses() const { return passes() * context; }
  int64_t FirstLoss(int rank, int part) const { return FirstPass(rank) * context + PassCount(rank) * part; }
  // The sum of all losses, in the order of passes, and of the parts within a pass.
  double Sum(absl::Span<const double> losses) const;
};

}  // namespace weft
