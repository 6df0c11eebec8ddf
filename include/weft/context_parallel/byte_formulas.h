// What attention over a context group must cost each rank: bytes that peers bring, hops, and work, from
// shapes and layout alone. Tests hold the engine's counters against these, to the byte.
//
// With P ranks of c tokens each, e the bytes of one token's head, Hq query and Hkv kv heads, head sizes all
// the same, an even split and heads that divide:
//
//   Ulysses         (P-1)/P c e (2 Hq + 2 Hkv), twice with backward
//   gather          2 c Hkv e (P-1), and as much in backward (gradients, in f32)
//   ring            2 c Hkv e (P-1), three times with backward: keys and values again, and gradients, in
//                   f32; by shift in P-1 hops forward and 2 (P-1) backward; fewer where a mask leaves blocks
//                   unseen
//   hybrid, U x V   Ulysses' row over U ranks, and the outer scheme's over V, of U c tokens and Hkv / U heads
//
// Kv heads that several ranks need count for each of them.
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
};

// Of one rank, for one call.
struct ContextCosts {
  int64_t forward_bytes = 0;  // Brought by peers, without log-sum-exps.
  int64_t backward_bytes = 0;
  int forward_hops = 0;   // Of a ring by shift: hops of keys and values.
  int backward_hops = 0;  // The same, and hops of gradients.
  int64_t pairs = 0;      // (query, key) pairs that it computes, of all its heads, in one row of the batch.

  int64_t bytes() const { return forward_bytes + backward_bytes; }
};

// `layout` is made with the scheme's Split.
ContextCosts CostsOf(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
                     const SequenceLayout& layout, int rank);

// The most work of any rank, over the mean; 1 if there is none.
double WorkImbalance(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
                     const SequenceLayout& layout);

}  // namespace weft
