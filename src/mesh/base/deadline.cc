#include "src/mesh/base/deadline.h"

#include <algorithm>

#include <absl/strings/str_join.h>

#include "weft/core/status.h"

namespace weft::internal {

std::chrono::steady_clock::time_point DeadlineAfter(absl::Duration timeout) {
  constexpr int64_t kMaxHours = 24 * 365;
  const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(kMaxHours));
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(bounded);
}

absl::Status MissingRanksError(std::string_view what, const std::vector<int>& missing,
                               absl::Duration timeout) {
  return absl::DeadlineExceededError(
      absl::StrCat(ToAbsl(what), ": ", missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "),
                   " did not arrive within ", absl::FormatDuration(timeout),
                   "; check what stopped there, or set a longer WEFT_TIMEOUT_S"));
}

}  // namespace weft::internal
