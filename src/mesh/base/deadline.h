// What everything that waits for ranks shares: when to give up, and how to say for whom it waited.
#pragma once

#include <chrono>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/time/time.h>

namespace weft::internal {

// Far away rather than infinite for timeouts that a clock's time point cannot hold.
std::chrono::steady_clock::time_point DeadlineAfter(absl::Duration timeout);

// kDeadlineExceeded: "<what>: rank 3 has not come within 10s (WEFT_TIMEOUT_S …)".
absl::Status MissingRanksError(std::string_view what, const std::vector<int>& missing,
                               absl::Duration timeout);

}  // namespace weft::internal
