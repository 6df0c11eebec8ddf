// Every collective over sizes, dtypes, uneven counts, in place or not, in node memory or not, against plain
// loops. The same body runs over threads and over MPI.
#pragma once

#include <vector>

#include "tests/comm/engine_fixture.h"

namespace weft::testing {

struct SweepOptions {
  std::vector<int64_t> counts = {0, 1, 7, 1009};  // Elements a rank, before unevenness.
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64};
  OpOptions op = {};
};

// Errors and failed expectations name the case.
absl::Status SweepAllGather(EngineFixture& fixture, const SweepOptions& options);
// Into one block a node, again and again: each time gated on a barrier of its ranks, who have read the last.
absl::Status SweepAllGatherShared(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepReduceScatter(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepAllReduce(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepAllToAll(EngineFixture& fixture, const SweepOptions& options);
// Strided parts of all shapes, in layouts of each rank's own.
absl::Status SweepStridedAllToAll(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepSendReceive(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepBroadcast(EngineFixture& fixture, const SweepOptions& options);

}  // namespace weft::testing
