// Head of a language model fused with its loss: logits = hidden W^T with W [vocab_size, dim], and the
// cross-entropy (natural logarithm) of their softmax with the targets, summed over all tokens and multiplied
// by the invocation's loss_scale().
//
// Forward computes the logits in fp32, in chunks of tokens. If a backward follows, it overwrites each chunk
// with its gradient, and keeps only the gradient. Memory for [tokens, vocab_size] is therefore needed once.
//
// Inputs: hidden [..., dim], f32, bf16 or f16; targets [...], i32. Outputs: the loss, an f32 scalar. A target
// of kIgnoredTarget has neither loss nor gradient.
// Without targets: the logits [..., vocab_size], f32, in a pass without gradients.
// Saves: hidden, and the gradient of the logits [tokens, vocab_size] in the dtype of hidden. Backward takes
// the gradient of the loss, an f32 scalar (Tensor::Scalar): 1, or in f16 a loss scale
// (weft/optim/loss_scaler.h). It writes or adds the weight's gradient, summed in fp32 and rounded once.
// Errors: kInvalidArgument (not one target per token; a target that is neither in [0, vocab_size) nor
//   kIgnoredTarget; no targets in a pass with gradients; checked before anything is computed).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <absl/status/statusor.h>

#include "weft/core/dtype.h"
#include "weft/nn/module.h"

namespace weft {

inline constexpr int32_t kIgnoredTarget = -1;

// Pure. Number of tokens whose logits a head computes at once.
int64_t LogitsChunkTokens(int64_t tokens, int64_t vocab_size);
// Pure. Bytes of the fp32 logits of a chunk, which the forward of a head takes beside what it saves. 0 in
// f32: the logits then lie where their gradient is saved.
int64_t LogitsScratchBytes(int64_t tokens, int64_t vocab_size, DType dtype);

class LmHeadLoss : public Module {
 public:
  // With its own weight "<name>.weight" [vocab_size, dim].
  LmHeadLoss(std::string name, int64_t vocab_size, int64_t dim, Initializer initializer = {});
  // Tied to the weight [vocab_size, dim] of another module, such as an Embedding.
  LmHeadLoss(std::string name, std::shared_ptr<Parameter> tied);

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  // The gradient of the targets is an undefined tensor.
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  absl::StatusOr<Tensors> ComputeLogits(const Invocation& invocation, const Tensor& hidden) const;
  int64_t vocab_size() const { return parameters()[0]->shape[0]; }
  int64_t dim() const { return parameters()[0]->shape[1]; }
};

// A body that makes hidden states of token ids, such as a Sequential, and the head.
//
// Inputs: ids [batch, tokens], i32, and targets of the same shape; or ids alone. Outputs: those of the head.
// Saves: nothing itself.
class LanguageModel : public Module {
 public:
  // The root of a model: it has no name.
  LanguageModel(std::unique_ptr<Module> body, std::unique_ptr<LmHeadLoss> head)
      : Module(""), body_(AddChild(std::move(body))), head_(AddChild(std::move(head))) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  // The gradients of ids and targets are undefined tensors.
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  Module* body_;
  LmHeadLoss* head_;
};

}  // namespace weft
