#include "src/train/plan/activation_bytes.h"

#include <algorithm>

#include "weft/context_parallel/byte_formulas.h"
#include "weft/core/dtype.h"
#include "weft/core/rounding.h"
#include "weft/core/status.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/lm_head_loss.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

int64_t ElementBytes(const RunPlan& plan) { return static_cast<int64_t>(SizeOf(plan.parallel.param_dtype)); }
bool Recomputes(const RunPlan& plan) {
  return plan.parallel.activation_checkpoint == ActivationCheckpoint::kFull;
}
// Tokens of a rank in a microbatch.
int64_t TokensOf(const RunPlan& plan) {
  const int64_t tokens = plan.batch.sequences_per_rank() * plan.seq_len;
  return CeilDiv(tokens, plan.context.size);
}

// Elements that a block keeps for each token: inputs of its norms, inputs and outputs of its matrix products,
// and those of the norms of queries and keys. `frozen`: without the inputs that only the gradients of weights
// need.
int64_t KeptPerToken(const LlamaConfig& model, bool frozen) {
  const int64_t attention =
      2 * model.dim + 2 * model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim;
  const int64_t normed = model.traits.qk_norm ? (model.heads + model.kv_heads) * model.head_dim : 0;
  const int64_t of_gradients = 2 * model.dim + model.ffn_dim;
  return attention + normed + 2 * model.ffn_dim + (frozen ? 0 : of_gradients);
}

// Elements that the head keeps for each token: the input and the output of its norm, and the gradients of the
// logits, which the forward computes.
int64_t KeptByHead(const LlamaConfig& model) { return 2 * model.dim + model.vocab_size; }

// Elements that an indexer keeps for each token in addition to KeptPerToken: index queries, the index key
// before and after its norm, and the weights of the index heads.
int64_t KeptByIndexer(const SparseAttentionConfig& sparse) {
  return sparse.index_heads * sparse.index_dim + 2 * sparse.index_dim + sparse.index_heads;
}

// Bytes of the selections for each token, as KeySelection describes them: a number and a score for each
// selected key, and their count. The layer whose backward runs also has the target of the indexer's loss.
int64_t SelectionBytesPerToken(int64_t layers, int64_t width) {
  constexpr auto kOfKey = static_cast<int64_t>(sizeof(int32_t) + sizeof(float));
  constexpr auto kCount = static_cast<int64_t>(sizeof(int32_t));
  constexpr auto kTarget = static_cast<int64_t>(sizeof(float));
  return layers * (width * kOfKey + kCount) + width * kTarget;
}

// Bytes of sparse attention for each of a rank's tokens.
int64_t SparseBytesPerToken(const LlamaConfig& model, const RunPlan& plan, int64_t kept_layers) {
  if (!model.sparse_attention) return 0;
  // A pack has the keys of all sequences.
  const int64_t keys = plan.seq_len * (plan.document_separator ? plan.batch.sequences_per_rank() : 1);
  return kept_layers * KeptByIndexer(*model.sparse_attention) *
             static_cast<int64_t>(SizeOf(plan.parallel.param_dtype)) +
         SelectionBytesPerToken(kept_layers, std::min(model.sparse_attention->top_k, keys));
}

// The part of KeptPerToken that lies in the buffers of attention over split sequences: its inputs and its
// output, and the inputs of their norms.
int64_t ExchangedPerToken(const LlamaConfig& model, const RunPlan& plan) {
  if (plan.context.size == 1 || model.sparse_attention) return 0;
  const int64_t heads = model.heads + model.kv_heads;
  return (2 * heads + (model.traits.qk_norm ? heads : 0)) * model.head_dim;
}

// Sizes of the products of the model with its weights, of which adapters train none.
std::vector<ProductSizes> ProductsOf(const LlamaConfig& model, const RunPlan& plan, int64_t tokens) {
  const DType compute = plan.parallel.param_dtype;
  const DType gradient = plan.Policy(WireCompression::kNone).DTypes().gradient_dtype();
  std::vector<ProductSizes> products;
  const auto add = [&](const Shape& weight, int64_t forward_tokens, DType output) {
    products.push_back({forward_tokens, weight[0], weight[1], output});
    products.push_back({tokens, weight[1], weight[0], compute});
    if (!plan.adapters) products.push_back({weight[0], weight[1], tokens, gradient});
  };
  for (const Shape& weight : HiddenMatricesOfLayer(model)) add(weight, tokens, compute);
  add({model.vocab_size, model.dim}, LogitsChunkTokens(tokens, model.vocab_size), DType::kF32);
  return products;
}

// Bytes that a rank gathers of sparse attention over split sequences, in one call.
int64_t SparseContextBytes(const LlamaConfig& model, const RunPlan& plan) {
  const AttentionShape shape =
      ShapeOfAttention(model, plan.batch.sequences_per_rank(), plan.parallel.param_dtype);
  const absl::StatusOr<SequenceLayout> layout = SequenceLayout::Create({plan.seq_len}, plan.context.split());
  WEFT_CHECK(layout.ok(), "the plan has a layout that cannot be created");
  const ContextCosts costs =
      CostsOf(plan.context.scheme, shape, {.causal = true, .keys_before = std::nullopt}, *layout, 0);
  const int64_t peers = plan.context.size - 1;
  return std::max(costs.forward_bytes, costs.backward_bytes) / peers * plan.context.size;
}

}  // namespace

std::vector<Shape> HiddenMatricesOfLayer(const LlamaConfig& model) {
  const int64_t queries = model.heads * model.head_dim;
  const int64_t keys = model.kv_heads * model.head_dim;
  return {{queries, model.dim},      {keys, model.dim},          {keys, model.dim},
          {model.dim, queries},      {model.ffn_dim, model.dim}, {model.ffn_dim, model.dim},
          {model.dim, model.ffn_dim}};
}

int64_t KeptActivationBytes(const LlamaConfig& model, const RunPlan& plan) {
  // With recomputation, the inputs of all blocks, and the rest of one block.
  const int64_t whole_layers = Recomputes(plan) ? 1 : model.layers;
  const int64_t of_layer = KeptPerToken(model, plan.adapters.has_value()) - ExchangedPerToken(model, plan);
  const int64_t blocks = (model.layers - whole_layers) * model.dim + whole_layers * of_layer;
  return TokensOf(plan) *
         ((blocks + KeptByHead(model)) * ElementBytes(plan) + SparseBytesPerToken(model, plan, whole_layers));
}

// The allocator of tensors keeps freed blocks by size, so these add to what is kept: one tensor of each size
// of a block, and two of the model's dimension, for the gradients before and after a part. Attention in bf16
// may pack its operands, too.
int64_t WorkingBytes(const LlamaConfig& model, const RunPlan& plan) {
  int64_t elements = 2 * model.dim + model.ffn_dim + (model.heads + 2 * model.kv_heads) * model.head_dim;
  if (PacksAttention(plan.parallel.param_dtype))
    elements += (6 * model.heads + 3 * model.kv_heads) * model.head_dim;
  return TokensOf(plan) * elements * ElementBytes(plan);
}

int64_t ScratchBytes(const LlamaConfig& model, const RunPlan& plan) {
  const DType dtype = plan.parallel.param_dtype;
  const int64_t tokens = TokensOf(plan);
  return LogitsScratchBytes(tokens, model.vocab_size, dtype) +
         MatmulScratchBytes(dtype, ProductsOf(model, plan, tokens));
}

int64_t ContextBytes(const LlamaConfig& model, const RunPlan& plan) {
  const int64_t ranks = plan.context.size;
  if (ranks == 1) return 0;
  if (model.sparse_attention) return SparseContextBytes(model, plan);
  const ContextScheme& scheme = plan.context.scheme;
  const int64_t inner = scheme.inner_ranks(static_cast<int>(ranks));
  const bool is_ring = inner < ranks && scheme.ring_rotation.has_value();
  const int64_t tokens = TokensOf(plan);
  const int64_t queries = tokens * model.heads * model.head_dim;
  const int64_t own_keys = 2 * tokens * model.kv_heads * model.head_dim;
  // Keys and values that the rank attends to at once. Several inner ranks may need the same head.
  const int64_t keys =
      2 * tokens * (is_ring ? inner : ranks) * CeilDiv(model.kv_heads, inner) * model.head_dim;
  // A layer keeps queries and output, the output of an inner exchange, the queries and the output of a swap,
  // inputs of norms, and log-sum-exps.
  const bool swaps = scheme.balance == LoadBalance::kQueryExchange;
  const int64_t norms = model.traits.qk_norm ? queries + own_keys / 2 : 0;
  const int64_t kept = (2 + (inner > 1 ? 1 : 0) + (swaps ? 1 : 0)) * queries + keys + norms;
  const int64_t of_layer = kept * ElementBytes(plan) + 2 * tokens * model.heads * kFloatBytes;
  // The backward of a layer has gradients before and after an exchange, and sums for keys and values in fp32.
  // In a ring, several blocks of keys are on their way.
  constexpr int64_t kBlocksOfRing = 5;
  const int64_t working =
      2 * (2 * queries + own_keys) * ElementBytes(plan) + (is_ring ? kBlocksOfRing : 1) * keys * kFloatBytes;
  return (Recomputes(plan) ? 1 : model.layers) * of_layer + working;
}

}  // namespace weft
