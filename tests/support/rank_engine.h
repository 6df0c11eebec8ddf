// Heap, pool and engine of one rank, for tests and benchmarks. Works over MPI, threads and simulated ranks.
#pragma once

#include <memory>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "tests/support/test_timeout.h"
#include "weft/comm/comm_engine.h"
#include "weft/core/status.h"
#include "weft/memory/buffer_pool.h"
#include "weft/memory/node_heap.h"

namespace weft::testing {

struct RankEngine {
  std::unique_ptr<NodeHeap> heap;
  std::unique_ptr<BufferPool> pool;
  std::unique_ptr<CommEngine> engine;

  // Over MPI the whole segment is reserved, so pass small `heap_options.segment_bytes` there.
  static absl::StatusOr<RankEngine> Make(Bootstrap& bootstrap, const EngineOptions& options = {},
                                         const NodeHeap::Options& heap_options = {}) {
    RankEngine rank;
    WEFT_ASSIGN_OR_RETURN(rank.heap, NodeHeap::Create(bootstrap, heap_options));
    rank.pool = std::make_unique<BufferPool>(*rank.heap, "rank");
    WEFT_ASSIGN_OR_RETURN(rank.engine, CommEngine::Create(bootstrap, *rank.heap, options));
    return rank;
  }
};

// Engine options with a timeout below that of a test.
inline EngineOptions WithTestTimeout(EngineOptions options = {}) {
  options.timeout = kTestTimeout;
  return options;
}

}  // namespace weft::testing
