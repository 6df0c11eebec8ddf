// Lightning indexer of sparse attention: projections of a layer's input to index queries, one index key a
// token, and weights of the index heads (DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025, section 2.1).
//
//   index_q = rope(x Wq)
//   index_k = rope(LayerNorm(x Wk))
//   index_weights = x Ww / sqrt(index_heads * index_dim)
//
// Rotary embedding turns the first `rope_dim` elements of each index head; the others have no position.
//
// Inputs: x [batch, tokens, dim], the input of the attention's projections.
// Outputs, in the dtype of x: index_q [batch, tokens, index_heads, index_dim], index_k [batch, tokens, 1,
//   index_dim], index_weights [batch, tokens, index_heads].
// Backward writes the gradients of the parameters, and returns an undefined gradient of x: the indexer's
//   input is detached, so that its loss does not reach the layers below. It overwrites the gradients of the
//   outputs, except those that have a reader (see Invocation::AddReader).
// Errors: kFailedPrecondition (an output of the projections has a reader and would be overwritten).
// Parameters: wq.weight, wk.weight, k_norm.weight, k_norm.bias, weights_proj.weight.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/module.h"
#include "weft/nn/rope.h"

namespace weft {

// Sparse attention with a lightning indexer in every layer, see weft/nn/sparse/sparse_attention.h.
struct SparseAttentionConfig {
  int64_t top_k = 512;
  int64_t index_heads = 4;
  int64_t index_dim = 32;  // Even.

  // Elements of an index head that rotary embedding turns: half of them, rounded down to an even number, at
  // least 2.
  int64_t rope_dim() const { return index_dim < 4 ? 2 : index_dim / 4 * 2; }
  friend bool operator==(const SparseAttentionConfig&, const SparseAttentionConfig&) = default;
};

// True for the parameters of an indexer that is part of a model: the name has a component "indexer".
bool IsIndexerParameter(const Parameter& parameter);

class LightningIndexer : public Module {
 public:
  // `rope_table`: of rope_dim / 2 frequencies.
  LightningIndexer(std::string name, int64_t dim, const SparseAttentionConfig& config,
                   std::shared_ptr<RopeTable> rope_table, Initializer initializer);

  // The module whose outputs are index_q, index_k, in this order, in their final form.
  Module& rope() const { return *rope_; }
  // The module that allocates index_k; rope() turns it in place.
  LayerNorm& key_norm() const { return *k_norm_; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  float WeightScale() const;

  int64_t heads_, index_dim_;
  Linear* projections_;  // wq, wk and weights_proj.
  LayerNorm* k_norm_;
  Rope* rope_;
};

}  // namespace weft
