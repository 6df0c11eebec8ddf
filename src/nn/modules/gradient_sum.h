// Gradients that are sums over tokens and not products: summed in fp32, in an order that threads do not
// change.
#pragma once

#include <cstdint>

#include <absl/functional/function_ref.h>
#include <absl/types/span.h>

#include "weft/nn/parameter.h"

namespace weft {

// gradient = sum + beta gradient over `count` elements from `offset`, rounded once to the gradient's dtype.
void StoreGradient(const TensorView& gradient, int64_t offset, const float* sum, float beta, int64_t count);

// Divides the tokens into parts of `tokens_per_part`, lets `add(begin, end, sum)` add each part's
// contribution to a zeroed sum of the parameter's size, adds the parts in order, and writes the parameter's
// gradient.
void SumOverTokens(int64_t tokens, int64_t tokens_per_part, Parameter& parameter,
                   absl::FunctionRef<void(int64_t begin, int64_t end, float* sum)> add);

}  // namespace weft
