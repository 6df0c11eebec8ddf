// Error of a flag with a bad value, and the limit of counts.
#pragma once

#include <cstdint>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

namespace weft {

// Upper limit of counts. No run needs more, and the product of two counts does not overflow.
inline constexpr int64_t kMaxCount = int64_t{1} << 31;

// Returns kInvalidArgument with the message "--flag value: remedy".
inline absl::Status BadFlag(const char* flag, const absl::AlphaNum& value, const absl::AlphaNum& remedy) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", value, ": ", remedy));
}

}  // namespace weft
