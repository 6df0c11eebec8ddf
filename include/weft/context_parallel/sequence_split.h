// The part of a tensor that a rank holds when a layout splits it along its sequence dim, and the way back.
//
// Pure: nothing is sent. Thread safety: free functions.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/tensor.h"

namespace weft {

// Whether `view` has, along `seq_dim` (negative counts from the end), all tokens of the layout; returns the
// dim, counted from the front. Errors: kInvalidArgument (no such dim; another number of tokens: says both).
absl::StatusOr<int> CheckWhole(const TensorView& view, int seq_dim, const SequenceLayout& layout);
// The same of the tokens that one rank holds.
absl::StatusOr<int> CheckPart(const TensorView& view, int seq_dim, const SequenceLayout& layout, int rank);

// A copy of what `rank` holds, in its order. Errors: as CheckWhole.
absl::StatusOr<Tensor> TakePart(const TensorView& whole, int seq_dim, const SequenceLayout& layout, int rank);

// Writes what `rank` holds to its places in the whole. Errors: as CheckWhole and CheckPart; the other dims or
// the dtypes differ.
absl::Status PutPart(const TensorView& part, int seq_dim, const SequenceLayout& layout, int rank,
                     const TensorView& whole);

}  // namespace weft
