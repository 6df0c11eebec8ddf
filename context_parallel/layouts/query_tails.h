// Query tails that ranks r and P-1-r of a contiguous layout swap to balance the work of a causal mask.
//
// The queries of P ranks form 2P halves. Without the swap rank r computes halves 2r and 2r+1. With it rank r
// computes half 2r and half 2(P-1-r)+1, which is the tail of its mirror rank P-1-r. These two attend to about
// as many keys on every rank. The middle rank of an odd P swaps nothing.
//
// Pure. Thread safety: a value.
#pragma once

#include <cstdint>

#include "weft/nn/token_runs.h"

namespace weft {

class QueryTails {
 public:
  explicit QueryTails(const SequenceParts& sequence);

  int mirror() const { return mirror_; }
  // Tokens of this rank before its tail, tokens of its tail, and tokens of the mirror's tail. Any may be 0.
  int64_t kept() const { return kept_; }
  int64_t sent() const { return sent_; }
  int64_t received() const { return received_; }
  const TokenRuns& kept_runs() const { return kept_runs_; }
  const TokenRuns& received_runs() const { return received_runs_; }

 private:
  int mirror_;
  int64_t kept_, sent_, received_;
  TokenRuns kept_runs_, received_runs_;
};

}  // namespace weft
