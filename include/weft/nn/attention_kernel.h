// The arithmetic of attention on memory that the caller owns: one rank's queries against blocks of keys that
// may lie anywhere, each with the tokens (runs) that it holds. No tokens x tokens matrix exists. Softmax and
// all sums are in fp32.
//
// Tensors of queries are [batch, queries, heads, dim], of keys [batch, keys, kv_heads, dim], with any strides
// but an innermost of 1; a tensor's tokens are described by runs whose count is theirs. Queries, keys and
// values have one dtype, f32 or bf16; values may have another head size than queries and keys. Any size may
// be 0.
//
// Thread safety: any thread may call; a call uses the calling thread's ThreadCount() threads.
// Bits: as Matmul's. They also depend on how keys are divided into blocks, as sums run block by block, and on
//   the cache of a core, which decides the size of tiles.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/core/tensor_view.h"
#include "weft/nn/attention_mask.h"

namespace weft {

// 1 / sqrt(head_dim).
float DefaultScale(int64_t head_dim);

struct AttentionProblem {
  AttentionMask mask;  // Valid (see Validate).
  float scale = 1.0F;  // Of the scores, before the softmax; positive.
  // Query head h reads kv head (h + head_offset) / group: a rank may hold some of the heads, from the middle
  // of a group too.
  int64_t group = 1;
  int64_t head_offset = 0;
};

struct KeyBlock {
  TensorView k;           // [batch, keys, kv_heads, head_dim]
  TensorView v;           // [batch, keys, kv_heads, value_dim]
  const TokenRuns* runs;  // Of the keys.
};

// Writes out [batch, queries, heads, value_dim] (q's dtype, or f32) and lse [batch, heads, queries] (f32),
// the natural logarithm of the sum of exp(score). A query that sees nothing gets zeros and -infinity.
void AttentionForward(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                      absl::Span<const KeyBlock> keys, const TensorView& out, const TensorView& lse);

// delta [batch, heads, queries] (f32) = the sum of out * dout over a head's values.
void AttentionDelta(const TensorView& out, const TensorView& dout, const TensorView& delta);

// Like the block's k and v: f32, or, with a key_beta of 0, the inputs' dtype.
struct KeyGradients {
  TensorView dk, dv;
};

// Gradients of one or several blocks of keys, and what these blocks add to the gradient of the queries. `lse`
// and `delta` are those of all keys that a query sees, so that blocks may come call by call. dq is like q:
// f32, or, with a dq_beta of 0, q's dtype. Each target becomes its gradient plus beta times what it held (0:
// not read).
void AttentionBackward(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                       absl::Span<const KeyBlock> keys, const TensorView& lse, const TensorView& delta,
                       const TensorView& dout, const TensorView& dq, float dq_beta,
                       absl::Span<const KeyGradients> gradients, float key_beta);

}  // namespace weft
