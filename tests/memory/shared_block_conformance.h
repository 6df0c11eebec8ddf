// What blocks that ranks of a node hold together promise on every bootstrap, as rank bodies.
#pragma once

#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// Zero at first; what one holder writes the others read; parts of a node share as the whole node does.
absl::Status HoldersShareOneMemory(Bootstrap& bootstrap);
// Blocks of the same holders are spread over their segments.
absl::Status SegmentsFillEvenly(Bootstrap& bootstrap);
// Holders let go one after the other, and then the memory is free again.
absl::Status BlocksStayUntilTheLastHolderLetsGo(Bootstrap& bootstrap);
// All ranks get one error, and no memory is lost.
absl::Status RanksFailAlike(Bootstrap& bootstrap);

}  // namespace weft::testing
