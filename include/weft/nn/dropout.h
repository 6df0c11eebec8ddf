// Dropout (Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014):
// each element is zero with the probability p, and divided by 1 - p otherwise.
//
// The mask of an element depends only on the invocation's RandomKey (seed, step, sample), on the document and
// the position of its token, its column and the module's name. It is therefore the same for every division of
// batches and sequences over ranks, in a recomputed forward, and in a resumed run. Calls of one module in one
// pass have the same mask: use a module for each place of the model.
//
// Inputs: x [batch, tokens, ...], or [batch, columns] without tokens; f32, bf16 or f16. Outputs: y of the
// same shape and dtype, in memory of its own. In a pass without gradients and without a RandomKey, as in
// evaluation, and if p is 0, y is x itself.
// Saves: no tensors. Backward draws the mask again.
// Errors: kInvalidArgument (p is outside of [0, 1); the RandomKey has not one sample for each row of the
//   batch, or has documents although the batch is not one row; the sequence has another number of tokens),
//   kFailedPrecondition (a pass with gradients and without a RandomKey).
#pragma once

#include <string>
#include <utility>

#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

class Dropout : public Module {
 public:
  Dropout(std::string name, float probability) : Module(std::move(name)), probability_(probability) {}

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  float probability_;
};

}  // namespace weft
