// Conformance tests of Bootstrap, run for each kind of bootstrap. All ranks run each function.
#pragma once

#include <cstddef>
#include <vector>

#include <absl/status/status.h>

#include "tests/mesh/support/conformance_test.h"
#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// Blobs of many sizes, including empty ones, arrive in rank order in every round.
absl::Status GathersBlobsInRankOrder(Bootstrap& bootstrap);
// All ranks get the error of the lowest failing rank. Later collectives still work.
absl::Status AllRanksGetTheErrorOfTheLowestFailingRank(Bootstrap& bootstrap);
// A rank that fails before an exchange of its peers ends it with its error. Later collectives still work.
absl::Status AFailingRankEndsTheExchangesOfItsPeers(Bootstrap& bootstrap);
// Exchanges of different names fail on all ranks. Later collectives still work.
absl::Status AllRanksLearnThatTheyAreInDifferentExchanges(Bootstrap& bootstrap);
// In each of two reservations, the segments are zeroed and do not overlap. Every rank reads what the other
// ranks of its node write.
absl::Status SharesMemoryWithinTheNode(Bootstrap& bootstrap);
// Reserving more than the free memory fails on all ranks. Later reservations, also of no bytes, still work.
absl::Status RejectsReservationsAboveTheFreeMemory(Bootstrap& bootstrap);

// Under `ulimit -f`, `files` files of that size limit reservations, on all ranks. For processes whose node
// memory is in files.
absl::Status ReservesAtMostTheFilesThatItMayMake(Bootstrap& bootstrap, size_t files);

// Rank 0 misses the deadline of an exchange, behind which its peers reserve memory alone. All ranks then
// reserve and share the same memory. For bootstraps whose reservations do not communicate.
absl::Status SharesMemoryAfterARankHasMissedADeadline(Bootstrap& base);

// All of those that hold for every kind of bootstrap.
std::vector<ConformanceTest> BootstrapConformance();

}  // namespace weft::testing
