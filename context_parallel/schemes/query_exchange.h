// The exchange of QueryTails, over a lane.
//
// Collective: all ranks of the lane's group, in the same order. Lifetime: as SequenceAttention.
#pragma once

#include "context_parallel/layouts/query_tails.h"
#include "context_parallel/schemes/sequence_attention.h"

namespace weft {

class QueryExchange {
 public:
  QueryExchange(const LevelLane& lane, const SequenceParts& sequence) : lane_(lane), tails_(sequence) {}

  const QueryTails& tails() const { return tails_; }
  Tensor KeptOf(const Tensor& own, int token_dim) const;
  // The mirror's tail of what is `own` here: tokens are dim 1.
  absl::StatusOr<PendingTensor> Take(const Tensor& own, OpOptions options) const;
  // Gives back what was made of the taken tail, into the mirror's tail of `result`, whose tokens are dim
  // `token_dim`.
  PendingTensor Return(const Tensor& made, const Tensor& result, int token_dim, OpOptions options) const;

 private:
  Tensor GivenOf(const Tensor& own, int token_dim) const;
  PendingTensor Swap(const Tensor& send, const Tensor& receive, Tensor result, OpOptions options) const;

  LevelLane lane_;
  QueryTails tails_;
};

}  // namespace weft
