// Codes of the errors that most tests of refusals expect.
#pragma once

#include <absl/status/status.h>

namespace weft::testing {

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

}  // namespace weft::testing
