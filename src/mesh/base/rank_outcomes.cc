#include "src/mesh/base/rank_outcomes.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft::internal {

absl::Status ErrorOfRanks(absl::Span<const absl::Status> outcomes) {
  const auto is_cause = [](const absl::Status& status) { return !status.ok() && !absl::IsAborted(status); };
  auto failed = std::find_if(outcomes.begin(), outcomes.end(), is_cause);
  if (failed == outcomes.end()) failed = std::find_if(outcomes.begin(), outcomes.end(), absl::IsAborted);
  if (failed == outcomes.end()) return absl::OkStatus();
  return Annotate(*failed, absl::StrCat("rank ", failed - outcomes.begin()));
}

}  // namespace weft::internal
