// Context-parallel plan of a run: the scheme that its flags name, or the cheapest of those that they allow.
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "weft/context_parallel/byte_formulas.h"
#include "weft/context_parallel/context_scheme.h"
#include "weft/nn/attention_mask.h"
#include "weft/nn/llama_config.h"
#include "weft/train/config.h"

namespace weft {

struct ContextPlan {
  int size = 1;  // Ranks over which each sequence is split.
  ContextScheme scheme;
  std::string reason;  // Why the plan has this scheme.

  SequenceSplit split() const { return size == 1 ? SequenceSplit() : scheme.Split(size); }
};

// The attention of one layer for `sequences` sequences, computed in `dtype`.
AttentionShape ShapeOfAttention(const LlamaConfig& model, int64_t sequences, DType dtype);

// Plans for the attention of one layer, with `shape` and a causal `mask`, in a microbatch of sequences of
// `seq_len` tokens. Sparse attention has gathers only. REQUIRES: `options` have passed Validate for this
// attention.
absl::StatusOr<ContextPlan> PlanContext(const ContextOptions& options, const AttentionShape& shape,
                                        const AttentionMask& mask, int64_t seq_len);

}  // namespace weft
