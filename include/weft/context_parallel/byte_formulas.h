// Cost of attention over a context group for each rank: received bytes, ring hops and computed pairs, from
// shapes and layout alone. Tests compare the engine's counters with these figures, to the byte.
//
// For P ranks with c tokens each, an even split, heads that divide, and one head size, let e be the bytes of
// one head of one token, Hq the query heads and Hkv the KV heads. A rank receives:
//
//   Ulysses        forward (P-1)/P c e (2 Hq + 2 Hkv); backward the same
//   gather         forward 2 c Hkv e (P-1); backward gradients in f32. Inputs in f32: as many bytes as
//                  forward. Inputs in bf16 or f16: twice as many
//   ring           forward 2 c Hkv e (P-1); backward keys and values again, and gradients in f32. Inputs in
//                  f32: twice as many bytes as forward. Inputs in bf16 or f16: three times as many. By shift:
//                  P-1 hops forward, 2 (P-1) backward; fewer where the mask hides whole blocks
//   sparse         gather, plus index keys of i elements: forward c i (P-1) times the size of the dtype;
//                  backward c i (P-1) times 4, in f32
//   hybrid U x V   Ulysses over U ranks, plus the outer scheme over V ranks with U c tokens and Hkv / U
//                  heads; gradients of keys and values are in f32 on both levels
//
// A KV head that several ranks need counts once for each of them.
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>

#include "weft/context_parallel/context_scheme.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/dtype.h"
#include "weft/nn/attention_mask.h"

namespace weft {

struct AttentionShape {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 1;
  int64_t value_dim = 1;
  DType dtype = DType::kF32;
  int64_t index_dim = 0;  // Sparse attention: elements of an index key. 0: dense attention.

  bool is_sparse() const { return index_dim > 0; }
};

// Costs of one call on one rank.
struct ContextCosts {
  int64_t forward_bytes = 0;   // Received from peers, without the LSE (log-sum-exp).
  int64_t backward_bytes = 0;  // Received from peers.
  int forward_hops = 0;        // Ring by shift: hops of keys and values.
  int backward_hops = 0;       // Ring by shift: hops of keys and values, and of gradients.
  // (query, key) pairs computed, over this rank's heads, in one row of the batch. For sparse attention all
  // visible pairs, as the indexer scores them.
  int64_t pairs = 0;

  int64_t bytes() const { return forward_bytes + backward_bytes; }
};

// REQUIRES: `layout` was created with the scheme's Split; for sparse attention the scheme passes
// ValidateSparse.
ContextCosts CostsOf(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
                     const SequenceLayout& layout, int rank);

// The largest number of pairs of any rank over the mean of all ranks; 1 if no rank has any.
double WorkImbalance(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
                     const SequenceLayout& layout);

}  // namespace weft
