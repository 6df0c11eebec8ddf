#include "src/train/plan/memory_need.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "weft/core/dtype.h"
#include "weft/core/status.h"
#include "weft/mesh/host_memory.h"
#include "weft/nn/lm_head_loss.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

constexpr int64_t kMasterBytes = sizeof(float);
constexpr size_t kSegmentGranularityBytes = size_t{2} << 20;
constexpr size_t kMinSegmentBytes = size_t{64} << 20;

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

// Elements that an indexer keeps for each token beside that: index queries, the index key before and after
// its norm, and the weights of the index heads.
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

// Sizes of the products of the model with its weights, of which adapters train none.
std::vector<ProductSizes> ProductsOf(const LlamaConfig& model, const RunPlan& plan, int64_t tokens) {
  const DType compute = plan.parallel.param_dtype;
  const DType gradient = plan.Policy(WireCompression::kNone).gradient_dtype();
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

std::string GiB(double bytes) { return absl::StrFormat("%.1f GiB", bytes / (1 << 30)); }

}  // namespace

std::string MemoryNeed::ToString() const {
  const auto part = [](int64_t bytes) { return GiB(static_cast<double>(bytes)); };
  return absl::StrCat(part(weights), " of weights, ", part(gradients), " of gradients, ", part(moments),
                      " of optimizer states, ", part(images), " of gathered weights and gradients, ",
                      part(activations), " of activations, ", part(scratch), " of scratch");
}

int64_t LargestGroup(const LlamaConfig& model) {
  const int64_t root = (model.tie_word_embeddings ? 1 : 2) * model.vocab_size * model.dim + model.dim;
  return std::max(root, (model.ParameterCount() - root) / model.layers);
}

std::vector<Shape> HiddenMatricesOfLayer(const LlamaConfig& model) {
  const int64_t queries = model.heads * model.head_dim;
  const int64_t keys = model.kv_heads * model.head_dim;
  return {{queries, model.dim},      {keys, model.dim},          {keys, model.dim},
          {model.dim, queries},      {model.ffn_dim, model.dim}, {model.ffn_dim, model.dim},
          {model.dim, model.ffn_dim}};
}

int64_t TrainedElements(const LlamaConfig& model, const RunPlan& plan) {
  return plan.adapter_elements().value_or(model.ParameterCount());
}

int64_t StateElements(const LlamaConfig& model, const RunPlan& plan) {
  const int64_t trained = TrainedElements(model, plan);
  switch (plan.optimizer) {
    case OptimizerKind::kAdamW:
      return 2 * trained;
    case OptimizerKind::kSgd:
      return plan.sgd.momentum == 0 ? 0 : trained;
    case OptimizerKind::kMuon: {
      int64_t matrices = 0;
      for (const Shape& shape : HiddenMatricesOfLayer(model)) matrices += ElementCount(shape);
      return 2 * trained - model.layers * matrices;
    }
  }
  return 0;
}

MemoryNeed NeedOf(const LlamaConfig& model, const RunPlan& plan) {
  const int64_t shards = plan.shard_group_size();
  const int64_t own = CeilDiv(model.ParameterCount() + plan.adapter_elements().value_or(0), shards);
  const int64_t trained = CeilDiv(TrainedElements(model, plan), shards);
  const auto compute_bytes = static_cast<int64_t>(SizeOf(plan.parallel.param_dtype));
  MemoryNeed need;
  need.weights = own * kMasterBytes;
  // Updates in backward free a group's gradients, unless earlier microbatches have left a sum of them.
  const bool keeps_sums = plan.batch.microbatches > 1 && plan.parallel.grad_sync != GradientSync::kLast;
  const bool frees_gradients = plan.updates_in_backward && !keeps_sums;
  need.gradients =
      kMasterBytes * (frees_gradients ? std::min(trained, CeilDiv(LargestGroup(model), shards)) : trained);
  const int64_t updated_parts =
      shards * (plan.parallel.shard_optimizer_over_replicas ? plan.replicate_size : 1);
  need.moments = kMasterBytes * CeilDiv(StateElements(model, plan), updated_parts);
  const int64_t group = LargestGroup(model);
  const int64_t trained_group = plan.adapters ? plan.adapters->elements / model.layers : group;
  // A rank that shares images with its node holds its part of them.
  const int64_t holders = plan.residency.residency == Residency::kPrivate ? 1 : shards;
  const bool in_place =
      plan.residency.residency == Residency::kInPlace && plan.parallel.param_dtype == DType::kF32;
  need.images = (in_place || shards == 1 ? 0 : CeilDiv(group, holders) * compute_bytes) +
                (shards == 1 ? 0 : CeilDiv(trained_group, holders) * compute_bytes);
  const int64_t tokens = CeilDiv(plan.batch.sequences_per_rank() * plan.seq_len, plan.context.size);
  const bool recomputes = plan.parallel.activation_checkpoint == ActivationCheckpoint::kFull;
  const int64_t of_layer = KeptPerToken(model, plan.adapters.has_value());
  // With recomputation, the inputs of all blocks, and the rest of one block.
  const int64_t blocks = recomputes ? (model.layers - 1) * model.dim + of_layer : model.layers * of_layer;
  const int64_t kept = blocks + KeptByHead(model);
  need.activations =
      tokens * (kept * compute_bytes + SparseBytesPerToken(model, plan, recomputes ? 1 : model.layers));
  const DType dtype = plan.parallel.param_dtype;
  need.scratch = LogitsScratchBytes(tokens, model.vocab_size, dtype) +
                 MatmulScratchBytes(dtype, ProductsOf(model, plan, tokens));
  return need;
}

absl::Status CheckFits(const MemoryNeed& need, int ranks, int64_t available, std::string_view remedies) {
  // Computes in double, because products of unchecked sizes may overflow an integer.
  const double total = static_cast<double>(need.total()) * ranks;
  const auto usable = static_cast<double>(UsableBytes(available));
  if (total <= usable) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the ", ranks, ranks == 1 ? " rank of this node needs" : " ranks of this node need", " at least ",
      GiB(total), ", but may take only ", GiB(usable), " of the ", GiB(static_cast<double>(available)),
      " that are available. A rank needs ", need.ToString(), ToAbsl(remedies)));
}

size_t SegmentBytes(const FreeMemory& free_memory, size_t ranks, const MemoryNeed& need) {
  const auto share_of = [ranks](size_t free_bytes) {
    return static_cast<size_t>(UsableBytes(static_cast<int64_t>(free_bytes))) / ranks;
  };
  const size_t share = share_of(free_memory.node_memory);
  const size_t of_host = share_of(free_memory.host);
  const auto outside = static_cast<size_t>(need.outside_of_node_memory());
  // If the need fills the host, the segment has its minimum size, and the error of the heap names what does
  // not fit.
  const size_t left = of_host > outside + kMinSegmentBytes ? of_host - outside : kMinSegmentBytes;
  return std::min(share, left) / kSegmentGranularityBytes * kSegmentGranularityBytes;
}

absl::StatusOr<size_t> SegmentBytes(const Bootstrap& bootstrap, const MemoryNeed& need) {
  WEFT_ASSIGN_OR_RETURN(const size_t node_memory, bootstrap.FreeNodeMemory());
  WEFT_ASSIGN_OR_RETURN(const size_t host, AvailableHostMemory());
  return SegmentBytes({node_memory, host}, bootstrap.node_map().RanksOf(bootstrap.node()).size(), need);
}

}  // namespace weft
