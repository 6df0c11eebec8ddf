// Merge of two partial results of attention, each normalized over its own keys, into the result over both.
//
// With lse and block_lse the log-sum-exps of the two sides (Liu et al., "Ring Attention", 2023, in the form
// without a maximum), all in f32:
//
//   out -= sigmoid(block_lse - lse) (out - block_out)
//   lse -= log sigmoid(lse - block_lse)
//
// A side with an lse of -infinity attended to no key. Its output is ignored and the other side is the result.
// If neither side attended to a key, out is zero and lse -infinity. The merge creates no NaN.
//
// Thread safety: any thread may call; a call uses the calling thread's ThreadCount() threads.
#pragma once

#include "weft/core/tensor_view.h"

namespace weft {

// Merges the block into `out` [batch, queries, heads, dim] and `lse` [batch, heads, queries]. The block's
// views have the same shapes. All are f32; strides are free, except that the innermost of outputs is 1.
void LseMerge(const TensorView& out, const TensorView& lse, const TensorView& block_out,
              const TensorView& block_lse);

}  // namespace weft
