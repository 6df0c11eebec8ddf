// Token ids from outside are checked once, where they enter a computation.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/status.h>

#include "weft/core/tensor.h"

namespace weft {

// Errors: kInvalidArgument (names the first id outside [0, vocab_size), where it is, and `what`).
absl::Status CheckTokenIds(const Tensor& ids, int64_t vocab_size, const std::string& what);

}  // namespace weft
