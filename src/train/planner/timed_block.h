// Decoder block that computes nothing, over a split sequence: it exchanges what the attention of a real block
// exchanges, from the same memory, and lets virtual time pass for its computation.
//
// Its parts are those between which a real block exchanges tensors: the projections with their norms, the
// rotary embedding, which writes in place, the attention, and all that follows it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/train/planner/costs.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/dtype.h"
#include "weft/nn/attention.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/llama_config.h"
#include "weft/nn/module.h"

namespace weft {

// Lets `ns` nanoseconds of computation pass.
using PassTime = std::function<void(double ns)>;

// Times of the parts of a block on one rank. A forward and a backward of the attention take time by pair of
// query and key, and head.
struct BlockTimes {
  PartTimes projections, rest;
  PartTimes attention_pair;
};
// `whole`: a block over whole sequences of `shape`. `share`: the rank's share of the tokens. `pairs`: the
// sequences whose pairs share the time of the attention.
BlockTimes SplitTimes(const PartTimes& whole, const PartShape& shape, const PartShape& pairs, double share);

// Kernels that write nothing.
AttentionKernels TimedKernels(const PartTimes& of_pair, const PassTime& pass_time);

class TimedBlock final : public Module {
 public:
  // The input is any tensor of one element; so are the output and both gradients.
  TimedBlock(const LlamaConfig& model, int64_t layer, Shape tokens, DType dtype, const BlockTimes& times,
             const PassTime& pass_time);

  absl::Status Split(ContextParallel& context);

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override;
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override;

 private:
  const int64_t heads_, kv_heads_;
  Module* projections_;
  Module* query_norm_ = nullptr;  // Null without norms of queries and keys.
  Module* key_norm_ = nullptr;
  Module* rope_;
  Attention* attention_;
  Module* rest_;
};

}  // namespace weft
