// Sparse attention: every query attends to the keys that a lightning indexer scores highest, the same for all
// heads (DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025, section 2.1). Grouped-query heads as in Attention.
//
// Inputs: q [batch, tokens, heads, head_dim], k [batch, keys, kv_heads, head_dim], v [batch, keys, kv_heads,
//   value_dim], and the outputs of LightningIndexer: index_q [batch, tokens, index_heads, index_dim], index_k
//   [batch, keys, 1, index_dim] and index_weights [batch, tokens, index_heads]. One dtype, f32, bf16 or f16.
// Outputs: out [batch, tokens, heads, value_dim].
// The invocation's sequence() gives the documents and positions of the tokens. If ranks share the
//   sequence, q, index_q and index_weights are this rank's tokens, and the keys are those of all ranks, in
//   rank order (weft/context_parallel/exchange_hooks.h gathers them). Otherwise keys and tokens are the same.
// Stage and coefficient of the indexer's loss come from the invocation: see IndexerPass.
// Backward: the gradients of q, k and v are those of the output. The gradients of the index inputs are those
//   of the indexer's loss alone. The two do not mix: selection has no gradient, and the loss takes the
//   attention weights as constants. An undefined gradient of the output is taken for zero, to train the
//   indexer alone. Gradients of the keys of all ranks are in f32, because ranks add them; others have the
//   dtype of the inputs.
// Saves: all inputs, out, the log-sum-exp and the selection. REQUIRES: none of them is overwritten before
//   backward. The module's ResultAllocators allocate the outputs and the gradients of the inputs.
// Errors: kInvalidArgument (shapes, dtypes, mask or top_k), kFailedPrecondition (a sequence that is split
//   over ranks, but keys of this rank alone).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/nn/attention_mask.h"
#include "weft/nn/module.h"

namespace weft {

// Stage of the indexers' training in one pass, set before forward, and what they report.
//
// Warm-up: attention is dense; the target and the indexer's softmax are over all visible keys. Sparse stage:
// attention and both distributions are over the selected keys. The losses of recomputed forwards count once.
struct IndexerPass {
  bool warm_up = false;
  // Factor of the gradients of each query's loss: the coefficient over the number of queries of the whole
  // step, over all ranks and microbatches.
  float loss_factor = 0.0F;
  // Measure the share of attention mass on every n-th query; 0: not at all. In the warm-up stage, the mass
  // of the keys that the indexer would select.
  int64_t mass_stride = 0;

  // Sums over the sparse attentions and this rank's queries of the pass.
  double loss = 0;           // In nats, without the factor. Complete after backward.
  int64_t queries = 0;       // Number of terms of `loss`.
  double selected_mass = 0;  // Shares, see AttentionMass.
  int64_t mass_pairs = 0;
};
// The state of an invocation, created at the first call.
IndexerPass& IndexerPassOf(Invocation& invocation);

struct SparseAttentionOptions {
  AttentionMask mask = {};
  int64_t top_k = 512;
};

class SparseAttention : public Module {
 public:
  enum Input : uint8_t { kQ, kK, kV, kIndexQ, kIndexK, kIndexWeights, kInputs };

  explicit SparseAttention(std::string name, SparseAttentionOptions options = {})
      : Module(std::move(name)), options_(options) {}

  // q, k, v, index_q, index_k, index_weights.
  absl::Span<const std::string_view> input_names() const override;
  const SparseAttentionOptions& options() const { return options_; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  absl::Status CheckInputs(const Tensors& inputs) const;

  SparseAttentionOptions options_;
};

}  // namespace weft
