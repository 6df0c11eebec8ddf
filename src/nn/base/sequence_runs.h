// Token runs of a module's inputs, taken from the invocation's sequence.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "weft/nn/invocation.h"
#include "weft/nn/token_runs.h"

namespace weft {

// The runs of a tensor with `tokens` tokens per row of the batch. `module` is the name for the message.
// Errors: kInvalidArgument (the invocation's sequence has another number of tokens on this rank).
absl::StatusOr<TokenRuns> SequenceRuns(const Invocation& invocation, int64_t tokens,
                                       const std::string& module);

// Errors: kInvalidArgument (the invocation has a PairMask and a sequence of several documents).
absl::Status CheckPairMask(const Invocation& invocation, const std::string& module);

}  // namespace weft
