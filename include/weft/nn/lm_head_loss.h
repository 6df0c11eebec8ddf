// The head of a language model and its loss in one: logits = hidden W^T, and the cross-entropy (natural
// logarithm) of their softmax with the targets, summed over all tokens and multiplied by the invocation's
// loss scale.
//
// Logits are computed in fp32 in chunks of tokens, and overwritten chunk by chunk with their gradient, which
// is all that is kept for backward: [tokens, vocab] in the compute dtype, once.
//
// Inputs: hidden [..., dim]; targets [...], i32. Outputs: the loss, an f32 scalar. Backward takes the
// gradient of the loss, an f32 scalar, usually 1.
#pragma once

#include <memory>
#include <string>

#include "weft/nn/module.h"

namespace weft {

class LmHeadLoss : public Module {
 public:
  // With a weight of its own, "<name>.weight" [vocab, dim].
  LmHeadLoss(std::string name, int64_t vocab_size, int64_t dim, Initializer initializer = {});
  // Tied to a table [vocab, dim] of another module.
  LmHeadLoss(std::string name, std::shared_ptr<Parameter> tied);

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  // The gradient of the targets is an undefined tensor.
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t vocab_size() const { return parameters()[0]->shape[0]; }
  int64_t dim() const { return parameters()[0]->shape[1]; }
};

}  // namespace weft
