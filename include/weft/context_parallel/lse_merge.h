// Joins two partial results of attention, each normalised over its own keys, into the result over both.
//
// With lse and lse_b the log-sum-exps of the two sides (Liu et al., "Ring Attention", 2023; in the form that
// needs no maximum):
//
//   out -= sigmoid(lse_b - lse) (out - out_b)
//   lse -= log sigmoid(lse - lse_b)
//
// all in fp32. A side whose lse is -infinity has seen nothing, whatever its output holds: the other side
// stays as it is. If neither has seen anything, out is zero and lse -infinity; nothing becomes NaN that was
// not.
//
// Thread safety: any thread may call; a call uses the calling thread's ThreadCount() threads.
#pragma once

#include "weft/core/tensor_view.h"

namespace weft {

// Merges the block into `out` [batch, queries, heads, dim] and `lse` [batch, heads, queries]; the block's
// views have the same shapes. All f32, with any strides but an innermost of 1 for outputs.
void LseMerge(const TensorView& out, const TensorView& lse, const TensorView& block_out,
              const TensorView& block_lse);

}  // namespace weft
