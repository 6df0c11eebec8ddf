// Attention mask as a function of documents and positions: the keys that a query may attend to.
#pragma once

#include <cstdint>
#include <optional>

#include <absl/status/status.h>

#include "weft/nn/token_runs.h"

namespace weft {

// A query attends only to keys of its own document. There, a query at position p attends to the keys at
//   all positions       if the mask is not causal,
//   [0, p]              if the mask is causal,
//   [p - w, p]          if the mask is causal with a window of w.
struct AttentionMask {
  bool causal = true;
  std::optional<int64_t> window;

  bool operator==(const AttentionMask&) const = default;
};

// Errors: kInvalidArgument (a window below 1, or without a causal mask).
absl::Status Validate(const AttentionMask& mask);

// The number of (query, key) pairs that the mask allows, by a closed form for each pair of runs. If it is 0,
// the keys need not be sent or computed for these queries.
int64_t VisiblePairs(const AttentionMask& mask, const TokenRuns& queries, const TokenRuns& keys);
int64_t VisiblePairs(const AttentionMask& mask, const TokenRun& queries, const TokenRun& keys);

}  // namespace weft
