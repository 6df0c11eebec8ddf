// Which tokens a module's tensors hold, by the invocation.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "weft/nn/invocation.h"
#include "weft/nn/token_runs.h"

namespace weft {

// Of a tensor of `tokens` tokens a row. Errors: kInvalidArgument (the invocation's sequence has another
// number of them here).
absl::StatusOr<TokenRuns> SequenceRuns(const Invocation& invocation, int64_t tokens,
                                       const std::string& module);

}  // namespace weft
