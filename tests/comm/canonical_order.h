// Reductions of random floats against the canonical tree, bit by bit. The same body runs over threads and
// over MPI.
#pragma once

#include "tests/comm/engine_fixture.h"

namespace weft::testing {

// Reduce-scatters (equal and uneven parts) and all-reduces `count` random elements a rank over the fixture's
// lane, and expects the bits of T(0, P).
absl::Status CheckCanonicalOrder(EngineFixture& fixture, DType dtype, int64_t count);

// On a mesh replicate x shard: a reduce-scatter over the shard group, followed by an all-reduce over the
// replicate group, gives each rank the bits that a reduction over all ranks would. Both sizes must be powers
// of two, or one of them 1.
absl::Status CheckHybridReduction(EngineFixture& fixture, int shard_size, int64_t count);

}  // namespace weft::testing
