// Range check of token ids that come from a caller.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/status.h>

#include "weft/core/tensor.h"

namespace weft {

// Checks that all ids lie in [lowest, vocab_size). `what` names the tensor in the message.
// Errors: kInvalidArgument (dtype or layout; or the first id out of range, with its position).
absl::Status CheckTokenIds(const Tensor& ids, int64_t vocab_size, const std::string& what,
                           int32_t lowest = 0);

}  // namespace weft
