// Learned embedding of positions, as in GPT-2: adds to each token the row of a table that belongs to the
// token's position in its document. The sum is formed in fp32 and rounded once.
//
// Inputs: x [batch, tokens, dim], such as the outputs of an Embedding. The invocation's sequence() gives the
// positions of the tokens. Outputs: y of the same shape and dtype, in memory of its own.
// The weight is [positions, dim].
// Saves: nothing. Backward returns the gradient of y as that of x. It sums the gradients of each position in
// fp32, and adds the sum to the position's row of the weight's gradient. A gradient that is not yet written
// is zero-filled first.
// Errors: kInvalidArgument (a position beyond the table; the sequence has another number of tokens).
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "weft/nn/module.h"

namespace weft {

class PositionEmbedding : public Module {
 public:
  PositionEmbedding(std::string name, int64_t positions, int64_t dim, Initializer initializer = {});

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t positions_;
  int64_t dim_;
};

}  // namespace weft
