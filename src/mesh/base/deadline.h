// Deadlines of waits for other ranks: time points, timeouts of the environment, the error for a missed one.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

namespace weft::internal {

// Now plus `timeout`. The timeout is clamped to [0, 1 year], because a time point cannot represent longer
// ones.
std::chrono::steady_clock::time_point DeadlineAfter(absl::Duration timeout);

// The seconds that an environment variable gives, or the default if it is unset.
// Errors: kInvalidArgument (not a number, or below a millisecond).
absl::StatusOr<absl::Duration> SecondsFromEnvironment(const char* variable, double default_seconds);

// "8s", "1.235s", "5m0.25s", "123.457ms": a timeout for messages, with at most three digits after the point.
std::string TimeoutText(absl::Duration timeout);

// Returns kDeadlineExceeded with the message "<what>: rank 3 did not arrive within 10s; …".
absl::Status MissingRanksError(std::string_view what, const std::vector<int>& missing,
                               absl::Duration timeout);

}  // namespace weft::internal
