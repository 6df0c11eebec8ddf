// Rows of a table, looked up by token id.
//
// Inputs: ids [...], i32. Outputs: [..., dim], in the dtype of the table. Forward fails with kInvalidArgument
// on an id outside the table, before anything is computed.
#pragma once

#include <string>

#include "weft/nn/module.h"

namespace weft {

class Embedding : public Module {
 public:
  Embedding(std::string name, int64_t vocab_size, int64_t dim, Initializer initializer = {});

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  // The gradient of the ids is an undefined tensor.
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  int64_t vocab_size_;
  int64_t dim_;
};

}  // namespace weft
