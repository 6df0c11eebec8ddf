// Causal attention with grouped queries: query head h reads key and value head h / (heads / kv_heads).
// Blocked with an online softmax (Dao et al., "FlashAttention", 2022): no tokens x tokens matrix exists, and
// what is saved for backward is the output and one log-sum-exp a query. Softmax and all sums are in fp32.
//
// Inputs: q [batch, seq, heads, head_dim], k and v [batch, seq, kv_heads, head_dim]. Outputs: [batch, seq,
// heads, head_dim], which is saved and must not be overwritten before backward.
#pragma once

#include <string>

#include "weft/nn/module.h"

namespace weft {

class CausalAttention : public Module {
 public:
  using Module::Module;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;
};

}  // namespace weft
