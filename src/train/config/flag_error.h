// Error of a flag with a bad value.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

namespace weft {

// Returns kInvalidArgument with the message "--flag value: remedy".
inline absl::Status BadFlag(const char* flag, const absl::AlphaNum& value, const absl::AlphaNum& remedy) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", value, ": ", remedy));
}

}  // namespace weft
