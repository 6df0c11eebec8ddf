// Parameter gradients that are sums over tokens but not matrix products. Summed in fp32, in an order that
// does not depend on the number of threads.
#pragma once

#include <cstdint>

#include <absl/functional/function_ref.h>
#include <absl/types/span.h>

#include "weft/nn/parameter.h"

namespace weft {

// gradient = sum + beta * gradient for elements [offset, offset + count), rounded once to the gradient's
// dtype. With beta 0 the old gradient is not read.
void StoreGradient(const TensorView& gradient, int64_t offset, const float* sum, float beta, int64_t count);

// Tokens per part of the sums of small parameters. Constant, so that the order of additions depends only on
// the number of tokens.
inline constexpr int64_t kTokensPerPart = 64;

// Writes or adds a gradient that is a sum over [0, tokens). Divides the tokens into parts of
// `tokens_per_part`. For each part, `add(begin, end, sum)` adds the contribution of tokens [begin, end) to a
// zeroed sum with the parameter's size. The sums of the parts are then added in order. `add` runs on several
// threads at once.
void SumOverTokens(int64_t tokens, int64_t tokens_per_part, Parameter& parameter,
                   absl::FunctionRef<void(int64_t begin, int64_t end, float* sum)> add);

}  // namespace weft
