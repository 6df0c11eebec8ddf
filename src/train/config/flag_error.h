// Errors that name a flag, and the limit of counts.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {

// Upper limit of counts. No run needs more, and the product of two counts does not overflow.
inline constexpr int64_t kMaxCount = int64_t{1} << 31;

// Returns kInvalidArgument with the message "--flag value: remedy".
inline absl::Status BadFlag(const char* flag, const absl::AlphaNum& value, const absl::AlphaNum& remedy) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", value, ": ", remedy));
}

// Puts "--flag: " in front of an error that does not begin with the flag.
inline absl::Status NameFlag(const char* flag, const absl::Status& status) {
  const std::string name = absl::StrCat("--", flag);
  return absl::StartsWith(status.message(), name) ? status : Annotate(status, name);
}

}  // namespace weft
