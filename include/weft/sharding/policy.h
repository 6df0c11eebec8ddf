// How a model is sharded. Of these options the dtypes change results; the others not one bit, only costs.
//
// Thread safety: a value.
#pragma once

#include <functional>

#include <absl/status/status.h>

#include "weft/core/dtype.h"
#include "weft/nn/parameter.h"

namespace weft {

struct ShardingPolicy {
  // On: the gathered image is the parameters, and the gradient image is the reduce-scatter's input. Off:
  // every parameter is sharded on a dim of its own, and copied out of and into the collectives' buffers.
  bool zero_copy = true;
  // Off: parameters stay unsharded from forward until their backward is over: one gather less, the whole
  // model in memory.
  bool reshard_after_forward = true;
  // The root's backward begins where its forward ends: resharding it in between only costs a gather.
  bool reshard_root_after_forward = false;
  // Groups that are gathered ahead of the one that computes; 0 gathers each when it is needed. At most
  // kMaxPrefetchDepth.
  int prefetch_depth = 1;
  // What forward and backward compute with; the sharded master copy is always fp32. f32 or bf16.
  DType param_dtype = DType::kF32;
  // What gradients are exchanged in; sums are formed in fp32 either way. f32 or bf16.
  DType reduce_dtype = DType::kF32;
  // Bounds on what is under way in backward; each reduce-scatter keeps one group's full gradients alive.
  int max_reduce_scatters = 2;
  int max_all_reduces = 2;
  // Without zero_copy: the dim on which a parameter is sharded; negative ones count from the end. Unset: 0.
  std::function<int(const Parameter&)> shard_dim;

  static constexpr int kMaxPrefetchDepth = 2;

  // Errors: kInvalidArgument (names the option, its value and what is allowed).
  absl::Status Validate() const;
  // What backward writes: bf16 only where parameters and reduction both are, else f32.
  DType gradient_dtype() const;
};

}  // namespace weft
