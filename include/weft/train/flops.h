// Floating-point operations of a training step, from which its rate is computed.
//
// Thread safety: a free function.
#pragma once

#include <cstdint>
#include <optional>

#include "weft/nn/llama_config.h"

namespace weft {

// Floating-point operations of forward and backward for one token: 6 N + 12 L H Q S. N is the number of
// parameters in matrix products (the embedding table is only looked up), L of layers, H of heads of Q
// elements, and S of tokens per sequence. Causal masks are not deducted, and recomputation does not count.
// In layers with a window of W keys, min(W, S) takes the place of S. Biases and norms do not count.
// Source: Chowdhery et al., "PaLM" (2022), appendix B.
//
// Sparse attention with K = min(top_k, S) selected keys: 12 L H Q K in place of 12 L H Q S, and for the
// indexers with I heads of J elements 4 M + L I J (2 S + 4 K). M is the number of their parameters in
// products, which have no gradient of their input. All keys are scored; the loss's gradient reads the
// selected ones.
//
// With A elements in adapters of a frozen model (`adapter_elements`), 4 N + 6 A in place of 6 N.
double FlopsPerToken(const LlamaConfig& config, int64_t seq_len,
                     std::optional<int64_t> adapter_elements = std::nullopt);

}  // namespace weft
