// Choice of one error from the outcomes of all ranks.
#pragma once

#include <absl/status/status.h>
#include <absl/types/span.h>

namespace weft::internal {

// OK, or the error of one rank with "rank N: " in front; `outcomes` has one status per rank, in rank order.
// kAborted follows from the error of another rank, so that other errors go first; of several, that of the
// lowest rank.
absl::Status ErrorOfRanks(absl::Span<const absl::Status> outcomes);

}  // namespace weft::internal
