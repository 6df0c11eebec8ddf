// Every n-th query of a tensor, for statistics over a part of the queries.
#pragma once

#include <cstdint>

#include "weft/core/tensor_view.h"
#include "weft/nn/token_runs.h"

namespace weft {

// Tokens 0, stride, 2 stride, ... of a tensor [batch, tokens, ...]. Shares its memory.
inline TensorView EveryNth(TensorView view, int64_t stride) {
  view.shape[1] = (view.shape[1] + stride - 1) / stride;
  view.strides[1] *= stride;
  return view;
}

// The same tokens' documents and positions.
inline TokenRuns EveryNth(const TokenRuns& runs, int64_t stride) {
  TokenRuns some;
  int64_t first = 0;
  for (const TokenRun& run : runs) {
    for (int64_t i = (first + stride - 1) / stride * stride - first; i < run.count; i += stride) {
      some.push_back({run.document, run.position + i, 1});
    }
    first += run.count;
  }
  return some;
}

}  // namespace weft
