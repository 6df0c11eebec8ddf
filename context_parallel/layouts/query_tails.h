// Which queries ranks r and P-1-r of a contiguous layout swap to even out a causal mask: the tails of their
// parts. Of the 2P halves of all ranks' queries, rank r then has the 2r-th, which sees little of what is
// before it, and the (2(P-1-r)+1)-th, which makes up for it. The middle rank of an odd P keeps its own.
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
  // Of this rank's tokens, those before its tail, and the tail; of its mirror's, the tail. Any may be empty.
  int64_t kept() const { return kept_; }
  int64_t given() const { return given_; }
  int64_t taken() const { return taken_; }
  const TokenRuns& kept_runs() const { return kept_runs_; }
  const TokenRuns& taken_runs() const { return taken_runs_; }

 private:
  int mirror_;
  int64_t kept_, given_, taken_;
  TokenRuns kept_runs_, taken_runs_;
};

}  // namespace weft
