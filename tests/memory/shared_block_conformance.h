// Conformance tests of SharedBlock for every kind of bootstrap. All ranks run each function.
#pragma once

#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// Blocks are zero at first. Every holder reads what the others write, for sets of holders that are a whole
// node or a part of one.
absl::Status HoldersShareTheSameMemory(Bootstrap& bootstrap);
// Blocks of one set of holders are distributed over the holders' segments.
absl::Status BlocksAreSpreadEvenlyOverSegments(Bootstrap& bootstrap);
// Holders release a block one after the other. Its memory is freed after the last one, and not earlier.
absl::Status MemoryIsFreedAfterTheLastHolder(Bootstrap& bootstrap);
// A block larger than a segment is striped: every rank reads and resolves it as one range. Its memory is
// freed.
absl::Status BlocksMayBeLargerThanASegment(Bootstrap& bootstrap);
// Ranks of a node that do not hold a block resolve the addresses that its holders give them.
absl::Status TheWholeNodeResolvesAddressesInABlock(Bootstrap& bootstrap);
// All ranks return the same error, and no memory leaks.
absl::Status AllRanksGetTheSameError(Bootstrap& bootstrap);

}  // namespace weft::testing
