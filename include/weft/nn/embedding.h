// Embedding table: looks up the row of each token id, and multiplies it by `scale`. The scale is rounded to
// the dtype of the table first, as in transformers' Gemma.
//
// Inputs: ids [...], i32. Outputs: y [..., dim] in the dtype of the table [vocab_size, dim].
// Saves: the ids. Backward sums the rows of dy in fp32 for each id, and adds each sum, times the scale, to
// the id's row of the table's gradient. A gradient that is not yet written is zero-filled first.
// Errors: kInvalidArgument (an id outside [0, vocab_size); checked before anything is computed).
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

class Embedding : public Module {
 public:
  Embedding(std::string name, int64_t vocab_size, int64_t dim, Initializer initializer = {},
            float scale = 1.0F);

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  // The gradient of the ids is an undefined tensor.
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t vocab_size_;
  int64_t dim_;
  float scale_;
};

}  // namespace weft
