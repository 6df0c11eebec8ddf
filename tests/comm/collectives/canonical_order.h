// Checks of reductions of random numbers against the canonical tree, bit by bit. The same bodies run over
// threads and over MPI.
#pragma once

#include "tests/comm/support/engine_fixture.h"

namespace weft::testing {

// Runs reduce-scatters (with equal and uneven parts) and an all-reduce of `count` random elements for each
// rank on the fixture's lane. Expects the bits of T(0, P).
absl::Status CheckCanonicalOrder(EngineFixture& fixture, DType dtype, int64_t count);

// On a mesh replicate x shard: runs a reduce-scatter over the shard group and an all-reduce over the
// replicate group. Expects the bits of a reduction over all ranks. REQUIRES: both sizes are powers of two, or
// one of them is 1.
absl::Status CheckHybridReduction(EngineFixture& fixture, int shard_size, int64_t count);

}  // namespace weft::testing
