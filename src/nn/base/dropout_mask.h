// Masks of dropout, for modules that drop elements. weft/nn/dropout.h says what a mask depends on.
#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "weft/core/tensor.h"
#include "weft/nn/invocation.h"

namespace weft {

// False in an evaluation: a pass without gradients and without a RandomKey.
bool DropsElements(const Invocation& invocation, float probability);

// x times the mask of `name` in this pass, in memory of its own. x is [batch, tokens, ...], or
// [batch, columns] without tokens; f32, bf16 or f16. REQUIRES: 0 <= probability < 1.
// Errors: kFailedPrecondition (the pass has no RandomKey), kInvalidArgument (the key has not one sample for
//   each row of the batch, or lacks a document; the sequence has another number of tokens).
absl::StatusOr<Tensor> DropElements(const Invocation& invocation, const std::string& name, float probability,
                                    const Tensor& x);
// The same for several tensors of one shape, whose dtypes may differ. Draws the mask once, which takes longer
// than to apply it.
absl::StatusOr<Tensors> DropElements(const Invocation& invocation, const std::string& name, float probability,
                                     const Tensors& tensors);

}  // namespace weft
