// How a run splits its sequences over ranks: the scheme that its flags name, with what they leave open filled
// in.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "weft/context_parallel/byte_formulas.h"
#include "weft/context_parallel/context_scheme.h"
#include "weft/train/config.h"

namespace weft {

struct ContextPlan {
  int size = 1;  // Ranks that share a sequence.
  ContextScheme scheme;
  std::string reason;  // Why it is this one.

  SequenceSplit split() const { return size == 1 ? SequenceSplit() : scheme.Split(size); }
};

// `shape`: of one layer's attention in a microbatch of sequences of `seq_len`. `options` have passed
// Validate.
absl::StatusOr<ContextPlan> PlanContext(const ContextOptions& options, const AttentionShape& shape,
                                        int64_t seq_len);

}  // namespace weft
