// The values that ranks exchange at each step: losses, and requests to stop or to save. Simulated ranks of a
// forecast exchange them, too.
//
// Thread safety: none; one thread uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <absl/status/statusor.h>

#include "weft/comm/comm_engine.h"
#include "weft/memory/buffer_pool.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

// Requests and states of a rank. In a sum, `stop` and `save` are true if some rank requests them, and
// `can_advance_save` if it is true on all ranks.
struct StepFlags {
  bool stop = false;  // Requests that all ranks stop after the step.
  bool save = false;  // Requests a checkpoint after the step.
  // The rank can advance the save that is under way.
  bool can_advance_save = false;
};

// Sums of IndexerPass.
struct IndexerSums {
  double loss = 0;
  int64_t queries = 0;
  double selected_mass = 0;
  int64_t mass_pairs = 0;

  IndexerSums& operator+=(const IndexerSums& other);
};

// The summary of one rank, or the sum of those of all ranks.
struct StepSummary {
  double loss = 0;  // This rank's contribution to the mean loss.
  StepFlags flags;
  int8_t padding[sizeof(int64_t) - sizeof(StepFlags)] = {};
  IndexerSums indexers;
};

// The gather of all ranks' summaries.
//
// Lifetime: the bootstrap, the heap and the engine must outlive it.
class StepSummaries {
 public:
  // `has_indexers`: with dense attention (false), ranks do not exchange `indexers`. Collective: all ranks.
  // Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<StepSummaries>> Create(const Bootstrap& bootstrap, NodeHeap& heap,
                                                               CommEngine& engine, bool has_indexers);

  // The sum of all ranks' summaries, of the same bits on each. Collective: all ranks.
  absl::StatusOr<StepSummary> Sum(const StepSummary& own);

 private:
  StepSummaries(const Bootstrap& bootstrap, NodeHeap& heap, CommEngine& engine, bool has_indexers);
  char* SummaryOf(int rank) const;

  const Bootstrap& bootstrap_;
  CommEngine& engine_;
  const size_t bytes_;  // Of a summary.
  BufferPool pool_;
  Buffer gathered_;  // bytes_ per rank, in node memory.
  LaneId lane_;
};

}  // namespace weft
