// What every bootstrap promises, as rank bodies that tests of each kind of bootstrap run.
#pragma once

#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// Blobs of many sizes, the empty one among them, arrive in rank order, round after round.
absl::Status GathersBlobsInRankOrder(Bootstrap& bootstrap);
// All ranks get the error of the lowest failing rank, and go on as before.
absl::Status AgreesOnTheLowestFailure(Bootstrap& bootstrap);
// Every rank sees what its node's ranks write, in zeroed segments that do not overlap, in each of two
// reservations.
absl::Status SharesMemoryWithinTheNode(Bootstrap& bootstrap);
// More than the node has is refused on all ranks, and does no harm.
absl::Status RefusesMemoryThatIsNotThere(Bootstrap& bootstrap);

}  // namespace weft::testing
