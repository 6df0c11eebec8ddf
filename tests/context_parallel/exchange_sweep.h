// Every exchange between ways of being split, against slices of the whole tensor, which every rank knows. The
// same bodies run over threads, over MPI and on simulated ranks.
#pragma once

#include "tests/comm/support/engine_fixture.h"

namespace weft::testing {

// Of 2 to 5 dims, between any two of them; even, uneven, and with sizes of the caller's.
absl::Status SweepAllToAllBetweenDims(EngineFixture& fixture);
// <Ax, y> = <x, A'y>, summed over ranks, of AllToAll with its adjoint and of AllGather with ReduceScatter.
absl::Status SweepAdjoints(EngineFixture& fixture);
absl::Status SweepGatherAndReduceScatter(EngineFixture& fixture);
absl::Status SweepSplitAndGather(EngineFixture& fixture);
absl::Status SweepPacks(EngineFixture& fixture);
absl::Status SweepPairs(EngineFixture& fixture);

}  // namespace weft::testing
