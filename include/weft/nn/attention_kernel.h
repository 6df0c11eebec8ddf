// Attention kernels, forward and backward, on memory of the caller. The queries of one rank attend to one or
// several blocks of keys and values, which may lie anywhere in memory. Softmax and all sums are in fp32.
// No [queries, keys] matrix is stored (Dao et al., "FlashAttention", 2022, section 3.1).
//
// Queries are [batch, queries, heads, head_dim], keys [batch, keys, kv_heads, head_dim], values
// [batch, keys, kv_heads, value_dim]. TokenRuns state the document and the position of each token of a
// tensor. Any size may be 0.
// REQUIRES: queries, keys and values have one dtype, f32, bf16 or f16. The innermost stride is 1. If a
//   tensor has elements and several tokens, their stride is at least head_dim (or value_dim); strides of
//   batch and heads are free. The counts of the runs add up to the tensor's tokens.
//
// Thread safety: any thread may call. A call uses the ThreadCount() threads of the calling thread.
// Determinism: as for Matmul. The bits also depend on the division of the keys into blocks, as sums run
//   block by block, and on the cache size of a core, which sets the tile size. In bf16, with 32 queries or
//   more, they depend on whether the CPU has AMX, AVX512-BF16 or neither.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <absl/types/span.h>

#include "weft/core/tensor_view.h"
#include "weft/nn/attention_mask.h"

namespace weft {

// 1 / sqrt(head_dim).
float DefaultScale(int64_t head_dim);

struct AttentionProblem {
  AttentionMask mask;  // REQUIRES: Validate(mask) is OK.
  float scale = 1.0F;  // Factor of the scores before the softmax. REQUIRES: positive.
  // Query head h reads kv head (h + head_offset) / group. The offset serves a rank whose first query head
  // lies in the middle of a group.
  int64_t group = 1;
  int64_t head_offset = 0;
  std::shared_ptr<const PairMask> pair_mask = nullptr;  // Null: the mask and the documents decide alone.
};

// True if attention of `dtype` with 32 queries or more packs its operands: in bf16, on a CPU with AMX or
// AVX512-BF16. Backward then takes memory of 6 elements of `dtype` for each element of the queries, and 3 for
// each of the keys.
bool PacksAttention(DType dtype);

struct KeyBlock {
  TensorView k;           // [batch, keys, kv_heads, head_dim]
  TensorView v;           // [batch, keys, kv_heads, value_dim]
  const TokenRuns* runs;  // Documents and positions of the keys. Must outlive the call.
};

// Writes out [batch, queries, heads, value_dim], in f32 or q's dtype, and lse [batch, heads, queries], in
// f32: the natural logarithm of the sum of exp(score). A query that may attend to no key gets zeros and
// -infinity.
void AttentionForward(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                      absl::Span<const KeyBlock> keys, const TensorView& out, const TensorView& lse);

// Writes delta [batch, heads, queries], in f32: the sum of out * dout over value_dim (FlashAttention,
// appendix B.2).
void AttentionDelta(const TensorView& out, const TensorView& dout, const TensorView& delta);

// Tensors that a backward reads besides the operands of its forward.
struct AttentionBackwardInputs {
  TensorView lse;    // As AttentionForward writes it.
  TensorView delta;  // As AttentionDelta writes it.
  TensorView dout;   // The gradient of out, shaped as it.
};

// Gradients of a key block, shaped as its k and v. In f32, or, if key_beta is 0, in the dtype of the inputs.
struct KeyGradients {
  TensorView dk, dv;
};

// Targets of a backward. Each becomes gradient + beta * target; with a beta of 0 the old target is not read.
struct AttentionGradients {
  TensorView dq;  // Shaped as q. In f32, or, if dq_beta is 0, in q's dtype.
  float dq_beta = 0.0F;
  absl::Span<const KeyGradients> keys;  // One for each key block. Must outlive the call.
  float key_beta = 0.0F;
};

// Writes the gradients of one or several blocks of keys, and the contribution of these blocks to the gradient
// dq of the queries.
// `lse` and `delta` must cover all keys that a query may attend to. Blocks can then be passed in separate
// calls, which add to the same dq.
void AttentionBackward(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                       absl::Span<const KeyBlock> keys, const AttentionBackwardInputs& inputs,
                       const AttentionGradients& gradients);

// The two kernels as a value. A simulation of ranks gives others, which let virtual time pass and write
// nothing.
struct AttentionKernels {
  std::function<decltype(AttentionForward)> forward = AttentionForward;
  std::function<decltype(AttentionBackward)> backward = AttentionBackward;
};

}  // namespace weft
