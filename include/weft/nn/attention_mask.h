// Which keys a query sees, as a function of documents and positions alone.
#pragma once

#include <cstdint>
#include <optional>

#include <absl/status/status.h>

#include "weft/nn/token_runs.h"

namespace weft {

// Documents never see each other. Within a document a query at position p sees the keys at
//   all positions               if not causal,
//   positions up to p           if causal,
//   positions p - w to p        if causal with a window of w.
struct AttentionMask {
  bool causal = true;
  std::optional<int64_t> window;

  bool operator==(const AttentionMask&) const = default;
};

// Errors: kInvalidArgument (a window below 1, or without a causal mask).
absl::Status Validate(const AttentionMask& mask);

// How many (query, key) pairs the mask lets through: a closed form for each pair of runs. Where it is 0 the
// keys need be neither sent nor looked at.
int64_t VisiblePairs(const AttentionMask& mask, const TokenRuns& queries, const TokenRuns& keys);
int64_t VisiblePairs(const AttentionMask& mask, const TokenRun& queries, const TokenRun& keys);

}  // namespace weft
