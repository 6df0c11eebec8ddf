// Attention mask as a function of documents and positions: the keys that a query may attend to.
//
// Pure. Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <absl/status/status.h>

#include "weft/nn/token_runs.h"

namespace weft {

// A query attends only to keys of its own document. There, a query at position p attends to the keys at
//   all positions       if the mask is not causal,
//   [0, p]              if the mask is causal,
//   [p - k, p]          if the mask is causal and keys_before is k.
struct AttentionMask {
  bool causal = true;
  // Keys before the query that it may attend to, besides itself. Unset: all.
  std::optional<int64_t> keys_before;

  bool operator==(const AttentionMask&) const = default;
};

// Visibility of single pairs, beside an AttentionMask and the documents: true if, in row `row` of the
// batch, the query at position `query` may attend to the key at position `key`. Positions count from the
// start of the whole sequence, so that a function means the same however the sequence is split. The
// counterpart of flex_attention's mask_mod in PyTorch, without a head.
//
// Called for pairs that the mask allows, once for each in a forward and in a backward, by one thread at a
// time. The pairs of a row that are visible take memory in proportion to their runs of
// consecutive keys.
// REQUIRES: the same result for the same arguments, also on other ranks that share the sequence. The sequence
//   is one document: positions in two documents would look alike. The function separates documents itself.
using PairMask = std::function<bool(int64_t row, int64_t query, int64_t key)>;

// Errors: kInvalidArgument (keys_before below 1, or without a causal mask).
absl::Status Validate(const AttentionMask& mask);

// The number of (query, key) pairs that the mask allows, by a closed form for each pair of runs. If it is 0,
// the keys need not be sent or computed for these queries.
int64_t VisiblePairs(const AttentionMask& mask, const TokenRuns& queries, const TokenRuns& keys);
int64_t VisiblePairs(const AttentionMask& mask, const TokenRun& queries, const TokenRun& keys);

}  // namespace weft
