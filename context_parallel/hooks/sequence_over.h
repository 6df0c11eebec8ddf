// Check of the sequence that a pass over a context group needs.
#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "weft/nn/invocation.h"

namespace weft {

// Returns the invocation's sequence. `user`: the exchange or module for the message.
// Errors: kFailedPrecondition (no sequence, or not one of `ranks` parts with `rank` as its own).
absl::StatusOr<std::shared_ptr<const SequenceParts>> SequenceOver(const Invocation& invocation, int ranks,
                                                                  int rank, const std::string& user);

}  // namespace weft
