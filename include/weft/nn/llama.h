// Llama decoder with its loss, or another decoder of its family, as the configuration's traits say.
// Parameters have the names and shapes of Hugging Face's LlamaForCausalLM, MistralForCausalLM,
// Qwen2ForCausalLM, Qwen3ForCausalLM or GemmaForCausalLM.
//
//   LlamaModel            model.embed_tokens, model.layers.N, model.norm, lm_head
//     DecoderBlock        x += self_attn(input_layernorm(x)); x += mlp(post_attention_layernorm(x))
//       SelfAttention     q_proj, k_proj, v_proj, q_norm and k_norm (with qk_norm), rotary embedding, causal
//                         attention, o_proj (with sparse_attention: also the indexer of the attention)
//       FeedForward       down_proj(f(gate_proj(x)) * up_proj(x)), f the trait `activation`
//
// Activations are [batch, tokens, dim], f32, bf16 or f16. Residual sums are formed in fp32 and rounded once,
// in place: a block adds its input to the output of its last layer. Only the layers save tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/nn/attention.h"
#include "weft/nn/embedding.h"
#include "weft/nn/gated_unit.h"
#include "weft/nn/linear.h"
#include "weft/nn/llama_config.h"
#include "weft/nn/lm_head_loss.h"
#include "weft/nn/module.h"
#include "weft/nn/rms_norm.h"
#include "weft/nn/rope.h"
#include "weft/nn/sparse/lightning_indexer.h"
#include "weft/nn/sparse/sparse_attention.h"

namespace weft {

// Rope tables of a model; its layers share them.
struct RopeTables {
  explicit RopeTables(const LlamaConfig& config);

  std::shared_ptr<RopeTable> attention;
  std::shared_ptr<RopeTable> indexer;  // Null with dense attention.
};

// Attention layer of a decoder block. With config.sparse_attention, SparseAttention and its indexer
// "<name>.indexer" take the place of Attention. The indexer reads the layer's input; no gradient leaves it.
//
// Inputs: x [batch, tokens, dim]. Outputs: y of the same shape and dtype; the caller may overwrite it.
class SelfAttention : public Module {
 public:
  // `layer` decides whether the attention has a window.
  SelfAttention(std::string name, const LlamaConfig& config, int64_t layer, const RopeTables& rope_tables);

  Linear& projections() const { return *projections_; }  // Computes queries, keys and values.
  // Norms of queries and keys. Null without the trait qk_norm.
  RmsNorm* query_norm() const { return query_norm_; }
  RmsNorm* key_norm() const { return key_norm_; }
  Rope& rope() const { return *rope_; }  // Rotates queries and keys.
  // REQUIRES: dense attention.
  Attention& attention() const {
    WEFT_CHECK(attention_ != nullptr, "a layer with sparse attention has no dense attention");
    return *attention_;
  }
  // Null with dense attention.
  LightningIndexer* indexer() const { return indexer_; }
  SparseAttention* sparse_attention() const { return sparse_attention_; }
  Linear& output() const { return *output_; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  // Normalizes queries and keys if the layer does, and rotates them.
  absl::StatusOr<Tensors> Rotate(Invocation& invocation, Tensors q_and_k);
  absl::StatusOr<Tensors> RotateBackward(Invocation& invocation, Tensors gradients);
  // Attention of rotated queries and keys. `x` is the layer's input, which the indexer reads.
  absl::StatusOr<Tensor> Attend(Invocation& invocation, const Tensor& x, Tensors qkv);
  // Gradients of the rotated queries and keys and of the values; the indexer's backward is done.
  absl::StatusOr<Tensors> AttendBackward(Invocation& invocation, Tensor gradient);

  int64_t heads_, kv_heads_, head_dim_;
  Linear* projections_;
  RmsNorm* query_norm_ = nullptr;
  RmsNorm* key_norm_ = nullptr;
  Rope* rope_;
  Attention* attention_ = nullptr;
  Linear* output_;
  LightningIndexer* indexer_ = nullptr;
  SparseAttention* sparse_attention_ = nullptr;
};

// Feed-forward layer of a decoder block.
//
// Inputs: x [batch, tokens, dim]. Outputs: y of the same shape and dtype; the caller may overwrite it.
class FeedForward : public Module {
 public:
  FeedForward(std::string name, const LlamaConfig& config);

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  Linear* projections_;  // Computes gate and up.
  GatedUnit* activation_;
  Linear* output_;
};

// One decoder block: attention and feed-forward layer, each with a norm before it and a residual connection.
//
// Inputs: x [batch, tokens, dim]. Outputs: y of the same shape and dtype.
class DecoderBlock : public Module {
 public:
  DecoderBlock(std::string name, const LlamaConfig& config, int64_t layer, const RopeTables& rope_tables);

  SelfAttention& self_attention() const { return *attention_; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  RmsNorm* attention_norm_;
  SelfAttention* attention_;
  RmsNorm* feed_forward_norm_;
  FeedForward* feed_forward_;
};

// The whole model.
//
// Inputs: token ids [batch, tokens] and targets [batch, tokens], both i32. The target of a token is the next
// token.
// Outputs: the sum of the tokens' losses times the invocation's loss_scale(), an f32 scalar. Backward takes
// the gradient of that scalar, usually 1, and returns undefined tensors.
// Without targets, for generation: the logits of the token after the last one [batch, vocab_size], f32.
// REQUIRES: no backward follows.
// Errors: kInvalidArgument (an id or target outside the vocabulary; a position of PositionLimit() or more;
// ids and targets of different shapes; a sequence with another number of tokens).
class LlamaModel : public Module {
 public:
  // Errors: those of Validate(config).
  static absl::StatusOr<std::unique_ptr<LlamaModel>> Create(const LlamaConfig& config);

  const LlamaConfig& config() const { return config_; }
  const std::vector<DecoderBlock*>& blocks() const { return blocks_; }
  // The modules to shard as separate parameter groups ("FSDP units"), in forward order: the blocks, and the
  // head unless its weight is tied to the embedding. The head has a group of its own because backward
  // completes its gradient first, and that of the embedding last.
  std::vector<Module*> units() const;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  explicit LlamaModel(const LlamaConfig& config);

  LlamaConfig config_;
  Embedding* embedding_;
  std::vector<DecoderBlock*> blocks_;
  RmsNorm* norm_;
  LmHeadLoss* head_;
};

}  // namespace weft
