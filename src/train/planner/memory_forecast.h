// Memory of a rank, from the plan of its run and a replay of a step.
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>

#include "src/train/plan/memory_need.h"
#include "src/train/plan/run_plan.h"
#include "src/train/planner/replay.h"
#include "weft/mesh/bootstrap.h"
#include "weft/nn/llama_config.h"

namespace weft {

// Bytes of rank 0.
//
// Note [Resident memory]
// Pages that were used once stay resident: node memory that only the first step needed is `idle`. Ranks of a
// node read each other's shards, images and gradients in place. Such pages count in the resident memory of
// each reader (`peers`), but once in the memory of the host.
struct MemoryForecast {
  int64_t weights = 0, gradients = 0, moments = 0;  // Of the rank's shards.
  int64_t images = 0, full_gradients = 0;
  int64_t activations = 0, context = 0, scratch = 0;
  int64_t program = 0;  // Code, libraries and tables.
  int64_t idle = 0;     // Node memory that was in use in the first step.
  int64_t peers = 0;  // Pages of peers on the node that the rank reads: resident, but not memory of its own.

  int64_t at_most = 0;  // The need, by which a run is judged: more groups may wait than in one step.

  int64_t total() const {
    return weights + gradients + moments + images + full_gradients + activations + context + scratch +
           program + idle;
  }
  int64_t resident() const { return total() + peers; }
};

// Node memory is that of the step; everything else is that of the need.
MemoryForecast ForecastMemory(const LlamaConfig& model, const MemoryNeed& need, const RunPlan& plan,
                              const NodeMap& nodes, const ReplayResult& step);

}  // namespace weft
