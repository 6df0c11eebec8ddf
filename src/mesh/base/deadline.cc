#include "src/mesh/base/deadline.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <absl/strings/numbers.h>

#include "weft/core/status.h"
#include "weft/mesh/process_group.h"
#include "weft/mesh/runtime.h"

namespace weft {
namespace {

absl::Duration Bounded(absl::Duration timeout) {
  constexpr int64_t kMaxHours = int64_t{24} * 365;
  return std::clamp(timeout, absl::ZeroDuration(), absl::Hours(kMaxHours));
}

}  // namespace

Deadline::Deadline(const Runtime& runtime, absl::Duration timeout)
    : runtime_(&runtime), end_ns_(runtime.NowNs() + absl::ToInt64Nanoseconds(Bounded(timeout))) {}

absl::Duration Deadline::Left() const {
  return absl::Nanoseconds(std::max<int64_t>(0, end_ns_ - runtime_->NowNs()));
}

namespace internal {

std::chrono::steady_clock::time_point DeadlineAfter(absl::Duration timeout) {
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(Bounded(timeout));
}

constexpr absl::Duration kShortestTimeout = absl::Milliseconds(1);  // No exchange takes less.

absl::StatusOr<absl::Duration> SecondsFromEnvironment(const char* variable, double default_seconds) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return absl::Seconds(default_seconds);
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !std::isfinite(seconds) ||
      absl::Seconds(seconds) < kShortestTimeout) {
    return absl::InvalidArgumentError(absl::StrCat(
        variable, " is '", text, "': set it to a positive number of seconds, at least ",
        absl::FormatDuration(kShortestTimeout), ", or unset it for the default of ", default_seconds));
  }
  return absl::Seconds(seconds);
}

std::string TimeoutText(absl::Duration timeout) {
  // FormatDuration takes the largest of these units.
  absl::Duration digit = absl::Nanoseconds(1);
  if (timeout >= absl::Milliseconds(1)) digit = absl::Microseconds(1);
  if (timeout >= absl::Seconds(1)) digit = absl::Milliseconds(1);
  return absl::FormatDuration(absl::Floor(timeout + digit / 2, digit));
}

absl::Status MissingRanksError(std::string_view what, const std::vector<int>& missing,
                               absl::Duration timeout) {
  return absl::DeadlineExceededError(
      absl::StrCat(ToAbsl(what), ": ", RankList(missing), " did not arrive within ", TimeoutText(timeout),
                   "; check what stopped there, or set a longer timeout: that of init_process_group under "
                   "PyTorch, otherwise WEFT_TIMEOUT_S"));
}

}  // namespace internal
}  // namespace weft
