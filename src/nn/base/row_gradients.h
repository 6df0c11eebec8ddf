// Gradient of a table of which a module has looked up rows.
#pragma once

#include <cstdint>

#include <absl/types/span.h>

#include "weft/core/tensor.h"
#include "weft/nn/parameter.h"

namespace weft {

// Adds row i of dy [..., dim], times the scale, to row ids[i] of the gradient of `table` [rows, dim]. Rows
// with the same id are summed in fp32 and rounded once. A gradient that is not yet written is zero-filled
// first.
// REQUIRES: one id for each row of dy, in the table; memory for the gradient.
void AddRowGradients(const Tensor& dy, absl::Span<const int32_t> ids, float scale, Parameter& table);

}  // namespace weft
