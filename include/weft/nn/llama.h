// A Llama decoder with its loss, under the names and shapes of Hugging Face's LlamaForCausalLM.
//
//   LlamaModel            model.embed_tokens, model.layers.N, model.norm, lm_head
//     DecoderBlock        x += self_attn(input_layernorm(x)); x += mlp(post_attention_layernorm(x))
//       SelfAttention     q_proj, k_proj, v_proj, rotary embedding, causal attention, o_proj
//       FeedForward       down_proj(silu(gate_proj(x)) * up_proj(x))
//
// Activations are [batch, seq, dim]. A residual's sum is formed in fp32 and rounded once.
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

// Inputs: x [batch, seq, dim]. Outputs: the same, which the caller may overwrite.
class SelfAttention : public Module {
 public:
  SelfAttention(std::string name, const LlamaConfig& config, std::shared_ptr<RopeTable> rope_table);

  Linear& projections() const { return *projections_; }  // Queries, keys, values.
  Rope& rope() const { return *rope_; }                  // Queries, keys.
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

// Inputs: x [batch, seq, dim]. Outputs: the same, which the caller may overwrite.
class FeedForward : public Module {
 public:
  FeedForward(std::string name, const LlamaConfig& config);

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  Linear* projections_;  // Gate, up.
  SwiGlu* activation_;
  Linear* output_;
};

// Inputs: x [batch, seq, dim]. Outputs: the same.
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

// Inputs: token ids [batch, seq] and targets [batch, seq], both i32; a target is the token that follows.
// Outputs: the sum of the tokens' losses times the invocation's loss scale, an f32 scalar. Backward takes the
// gradient of that scalar, 1, and returns undefined tensors. Errors: kInvalidArgument (a token outside the
// vocabulary; a position from max_positions on; ids and targets of different shapes).
class LlamaModel : public Module {
 public:
  // Errors: what Validate says of the configuration.
  static absl::StatusOr<std::unique_ptr<LlamaModel>> Create(const LlamaConfig& config);

  const LlamaConfig& config() const { return config_; }
  const std::vector<DecoderBlock*>& blocks() const { return blocks_; }
  // What is worth to be gathered and reduced by itself, in the order of forward: the blocks, and the head
  // unless it is the embedding. The head's gradient is the first of backward, and the embedding's the last.
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
