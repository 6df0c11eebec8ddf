// What a step cost: differences of the monotonic counters of engine and sharding.
#pragma once

#include <cstdint>

#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/sharding/counters.h"
#include "weft/sharding/fully_shard.h"
#include "weft/train/metrics.h"

namespace weft {

struct CounterSnapshot {
  EngineCounters engine;
  ShardingCounters sharding;
  int64_t allocated_bytes = 0;  // Since the start, by tensors and from the node heap.
};

// Fills the byte, allocation and communication-time fields of `metrics` with what happened between two
// snapshots.
void AddCounters(const CounterSnapshot& before, const CounterSnapshot& after, StepMetrics& metrics);

// Fills in the largest memory of each pool since the peaks were reset. `sequences`: null where they are not
// split.
void AddPeaks(ShardedModel& model, const ContextParallel* sequences, const CommEngine& engine,
              StepMetrics& metrics);

}  // namespace weft
