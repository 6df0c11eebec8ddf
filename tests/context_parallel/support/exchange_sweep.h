// Test bodies of all exchanges: results are compared with slices of the whole tensor, which every rank knows.
// The same bodies run over threads, over MPI and on simulated ranks.
#pragma once

#include "tests/comm/support/engine_fixture.h"
#include "weft/core/tensor.h"

namespace weft::testing {

// Random small integers in f32, whose products and sums are exact. `salt` seeds the generator.
Tensor WholeNumbers(const Shape& shape, uint64_t salt);

// Tensors of 2 to 5 dims, between any two dims, with even, uneven and given sizes.
absl::Status SweepAllToAllBetweenDims(EngineFixture& fixture);
// <Ax, y> = <x, A'y>, summed over ranks, of AllToAll with its adjoint and of AllGather with ReduceScatter.
absl::Status SweepAdjoints(EngineFixture& fixture);
absl::Status SweepGatherAndReduceScatter(EngineFixture& fixture);
absl::Status SweepSplitAndGather(EngineFixture& fixture);
absl::Status SweepPacks(EngineFixture& fixture);
absl::Status SweepPairs(EngineFixture& fixture);

}  // namespace weft::testing
