// Kernels of sparse attention: selection of keys by a lightning indexer, attention to the selected keys,
// forward and backward, and the indexer's loss (DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025, section 2).
//
// Layouts and requirements of q, k, v, out, lse, delta and their gradients: as in attention_kernel.h. Any
// size may be 0. A *key number* counts the keys over all blocks, end to end.
//
// Thread safety: any thread may call. A call uses the ThreadCount() threads of the calling thread.
// Determinism: the bits depend on sizes, dtypes and the division of the keys into blocks, not on the thread
//   count and not on the addresses.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"

namespace weft {

// Index score of query t and key s: the sum over index heads h of weights[t, h] * ReLU(q[t, h] . k[s]). One
// index key serves all index heads.
struct IndexQueries {
  TensorView q;        // [batch, queries, index_heads, index_dim], f32, bf16 or f16
  TensorView weights;  // [batch, queries, index_heads], in q's dtype
};
// The index keys of one KeyBlock: [batch, keys, index_dim], in the dtype of the index queries.
using IndexKeys = absl::Span<const TensorView>;

// The keys that each query attends to; all heads of a query share them.
struct KeySelection {
  Tensor keys;    // [batch, queries, width], i32: key numbers, ascending. Valid: the first counts[b, t].
  Tensor scores;  // [batch, queries, width], f32: index scores of these keys.
  Tensor counts;  // [batch, queries], i32: at most `width`; 0 for a query without visible keys.

  int64_t width() const { return keys.dim(2); }
};

// Selects for every query the `top_k` visible keys with the largest index scores. Of equal scores the key
// with the lower position in its document is selected. A query with fewer visible keys selects all of them;
// the selection's width is the smaller of `top_k` and the number of keys. Scores are computed in fp32, key
// tile by key tile: memory does not grow with queries x keys.
// REQUIRES: top_k > 0.
KeySelection SelectKeys(const AttentionMask& mask, int64_t top_k, const IndexQueries& index,
                        const TokenRuns& q_runs, absl::Span<const KeyBlock> keys, IndexKeys index_keys);

// AttentionForward over the selected keys.
void SparseAttentionForward(const AttentionProblem& problem, const TensorView& q,
                            const KeySelection& selection, absl::Span<const KeyBlock> keys,
                            const TensorView& out, const TensorView& lse);

// AttentionBackward over the selected keys, with betas of 0. Gradients of keys that no query selects are 0.
// `target`, unless undefined: receives the attention weights of the selected keys, summed over the heads and
// divided by their number: [batch, queries, width], f32.
void SparseAttentionBackward(const AttentionProblem& problem, const TensorView& q,
                             const KeySelection& selection, absl::Span<const KeyBlock> keys,
                             const AttentionBackwardInputs& inputs, const TensorView& dq,
                             absl::Span<const KeyGradients> gradients, const TensorView& target);

// Gradients of the index queries, their weights and the index keys, each overwritten.
struct IndexerGradients {
  TensorView dq;                    // As IndexQueries::q, in f32 or its dtype.
  TensorView dweights;              // As IndexQueries::weights, in f32 or its dtype.
  absl::Span<const TensorView> dk;  // As the index keys, f32.
};

// Loss of the indexer: the sum over queries of KL(target || softmax of the index scores), in nats, both over
// the same keys. The target takes no gradient. Writes `factor` times the gradients of the returned sum.
//
// Over the selected keys; `target` as SparseAttentionBackward wrote it.
double SelectedIndexerLoss(const KeySelection& selection, const TensorView& target, const IndexQueries& index,
                           absl::Span<const KeyBlock> keys, IndexKeys index_keys, float factor,
                           const IndexerGradients& gradients);
// Over all visible keys, for dense attention whose log-sum-exp is `lse`. Key tile by key tile.
double DenseIndexerLoss(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                        absl::Span<const KeyBlock> keys, const TensorView& lse, const IndexQueries& index,
                        IndexKeys index_keys, float factor, const IndexerGradients& gradients);

// Share of dense attention's weights that the selected keys have, summed over heads and over every
// `query_stride`-th query (numbers 0, query_stride, ...), and the number of (head, query) pairs in the sum.
struct AttentionMass {
  double selected = 0;
  int64_t pairs = 0;
};
AttentionMass SelectedMass(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                           const KeySelection& selection, absl::Span<const KeyBlock> keys,
                           int64_t query_stride);

}  // namespace weft
