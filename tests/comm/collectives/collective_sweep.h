// Sweeps of each collective over sizes, dtypes, uneven counts, in place or not, in node memory or not.
// Results are compared with plain loops. The same bodies run over threads and over MPI.
#pragma once

#include <vector>

#include "tests/comm/support/engine_fixture.h"

namespace weft::testing {

struct SweepOptions {
  std::vector<int64_t> counts = {0, 1, 7, 1009};  // Elements for each rank, if parts are equal.
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64,
                               DType::kF64, DType::kI16,  DType::kI8,  DType::kU8};
  OpOptions op = {};
};

// Errors and failed expectations contain the case.
absl::Status SweepAllGather(EngineFixture& fixture, const SweepOptions& options);
// Gathers repeatedly into one shared block for each node. The gate of a gather is a barrier of the node's
// ranks, which each rank submits after it has read the previous result.
absl::Status SweepAllGatherShared(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepReduceScatter(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepAllReduce(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepAllToAll(EngineFixture& fixture, const SweepOptions& options);
// Exchanges strided parts of random shapes. Sender and receiver have different layouts.
absl::Status SweepStridedAllToAll(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepSendReceive(EngineFixture& fixture, const SweepOptions& options);
absl::Status SweepBroadcast(EngineFixture& fixture, const SweepOptions& options);

}  // namespace weft::testing
