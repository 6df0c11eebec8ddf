// Copies between a whole tensor and the part of it that a rank holds, along the sequence dim of a layout.
//
// Pure; sends nothing. Thread safety: free functions.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/tensor.h"

namespace weft {

// Checks that `view` has all tokens of the layout along `seq_dim` (negative: counted from the end). Returns
// the dim, counted from the front. Errors: kInvalidArgument (no such dim; another number of tokens).
absl::StatusOr<int> CheckWhole(const TensorView& view, int seq_dim, const SequenceLayout& layout);
// As CheckWhole, for the tokens of one rank.
absl::StatusOr<int> CheckPart(const TensorView& view, int seq_dim, const SequenceLayout& layout, int rank);

// Returns a copy of the tokens of `rank`, in the rank's order. Errors: as CheckWhole.
absl::StatusOr<Tensor> ExtractPart(const TensorView& whole, int seq_dim, const SequenceLayout& layout,
                                   int rank);

// Copies the tokens of `rank` to their places in `whole`.
// Errors: as CheckWhole and CheckPart; kInvalidArgument (the other dims or the dtypes differ).
absl::Status InsertPart(const TensorView& part, int seq_dim, const SequenceLayout& layout, int rank,
                        const TensorView& whole);

}  // namespace weft
