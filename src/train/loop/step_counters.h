// Bytes, allocations and peaks of memory in the metrics of a step.
#pragma once

#include <cstdint>

#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/sharding/fully_shard.h"
#include "weft/train/metrics.h"

namespace weft {

// Monotonic counters at one moment. A step's costs are the differences of two snapshots.
struct CounterSnapshot {
  EngineCounters engine;
  ShardingCounters sharding;
  int64_t allocated_bytes = 0;  // Memory of tensors and node memory, since the start.
};

// Fills the byte, allocation and communication-time fields of `metrics` with the differences of two
// snapshots.
void AddCounters(const CounterSnapshot& before, const CounterSnapshot& after, StepMetrics& metrics);

// Fills in the peak memory of each pool since the peaks were reset. `sequences`: null if they are not split.
void AddPeaks(ShardedModel& model, const ContextParallel* sequences, const CommEngine& engine,
              StepMetrics& metrics);

}  // namespace weft
