// Deadlines of waits for other ranks, and the error for a missed deadline.
#pragma once

#include <chrono>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/time/time.h>

namespace weft::internal {

// Now plus `timeout`. The timeout is clamped to [0, 1 year], because a time point cannot represent longer
// ones.
std::chrono::steady_clock::time_point DeadlineAfter(absl::Duration timeout);

// Returns kDeadlineExceeded with the message "<what>: rank 3 did not arrive within 10s; …".
absl::Status MissingRanksError(std::string_view what, const std::vector<int>& missing,
                               absl::Duration timeout);

}  // namespace weft::internal
