// Llama decoder with its loss. Parameters have the names and shapes of Hugging Face's LlamaForCausalLM.
//
//   LlamaModel            model.embed_tokens, model.layers.N, model.norm, lm_head
//     DecoderBlock        x += self_attn(input_layernorm(x)); x += mlp(post_attention_layernorm(x))
//       SelfAttention     q_proj, k_proj, v_proj, rotary embedding, causal attention, o_proj
//       FeedForward       down_proj(silu(gate_proj(x)) * up_proj(x))
//
// Activations are [batch, tokens, dim], f32 or bf16. Residual sums are formed in fp32 and rounded once, in
// place: a block adds its input to the output of its last layer. Only the layers save tensors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/nn/attention.h"
#include "weft/nn/embedding.h"
#include "weft/nn/linear.h"
#include "weft/nn/llama_config.h"
#include "weft/nn/lm_head_loss.h"
#include "weft/nn/module.h"
#include "weft/nn/rms_norm.h"
#include "weft/nn/rope.h"
#include "weft/nn/swiglu.h"

namespace weft {

// Attention layer of a decoder block.
//
// Inputs: x [batch, tokens, dim]. Outputs: y of the same shape and dtype; the caller may overwrite it.
class SelfAttention : public Module {
 public:
  SelfAttention(std::string name, const LlamaConfig& config, std::shared_ptr<RopeTable> rope_table);

  Linear& projections() const { return *projections_; }  // Computes queries, keys and values.
  Rope& rope() const { return *rope_; }                  // Rotates queries and keys.
  Attention& attention() const { return *attention_; }
  Linear& output() const { return *output_; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t heads_, kv_heads_, head_dim_;
  Linear* projections_;
  Rope* rope_;
  Attention* attention_;
  Linear* output_;
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
  SwiGlu* activation_;
  Linear* output_;
};

// One decoder block: attention and feed-forward layer, each with a norm before it and a residual connection.
//
// Inputs: x [batch, tokens, dim]. Outputs: y of the same shape and dtype.
class DecoderBlock : public Module {
 public:
  DecoderBlock(std::string name, const LlamaConfig& config, std::shared_ptr<RopeTable> rope_table);

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
// Errors: kInvalidArgument (an id or target outside the vocabulary; a position of max_positions or more; ids
// and targets of different shapes; a sequence with another number of tokens).
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
