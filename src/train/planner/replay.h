// One training step on simulated ranks: the real engine and the real schedule of parameter groups, with the
// compute of each part of the model as virtual time.
//
// Note [Scaled replay]
// Problem: a large model on many ranks takes too much memory and too many events.
// Rule: parameters have 1 / divisor of their elements, and links and copies 1 / divisor of their speed.
//   Slices and windows keep their size. Times stay the same; bytes and peaks are multiplied by the divisor
//   again.
// Why it suffices: an operation takes bytes / speed in both. With a divisor of 1 nothing is rounded.
// Cost: an operation has fewer slices, so their pipelines fill more coarsely; padding counts more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <absl/status/statusor.h>

#include "src/train/plan/run_plan.h"
#include "src/train/planner/costs.h"
#include "weft/mesh/bootstrap.h"
#include "weft/nn/linear.h"
#include "weft/nn/llama_config.h"
#include "weft/sharding/counters.h"
#include "weft/sharding/schedule_rules.h"
#include "weft/train/planner.h"

namespace weft {

// One node is simulated if all do the same: Note [Mirrored nodes] in weft/mesh/simulation.h.
struct ReplayInput {
  const LlamaConfig& model;
  const std::optional<LoraOptions>& lora;  // The adapters, which alone are trained. Unset: all weights are.
  const RunPlan& plan;
  NodeMap nodes;
  ModelTimes times;  // Of one microbatch with whole sequences, also where ranks split them.
  CoreRates rates;
  LinkSpeed link;
  std::optional<double> numa_gb_s = std::nullopt;  // As in PlanOptions.
  int cores = 1;                                   // Of each node.
  int threads = 1;                                 // Of each rank.
  int max_full_ranks = 64;  // With more ranks, one node is simulated if all do the same.
  std::shared_ptr<const ScheduleRules> rules = nullptr;  // Null: the built-in ones.
  std::optional<int64_t> divisor = std::nullopt;         // See Note [Scaled replay]. Unset: ChooseDivisor.
};

struct ReplayResult {
  double step_ms = 0;     // Of the last step, from the end of the one before, on the last rank.
  double compute_ms = 0;  // Compute of one rank if it has its threads for itself.
  double exposed_ms = 0;  // Mean over ranks of the time in which they waited for communication.
  // These are bytes of one step and one rank, the mean over ranks.
  int64_t all_gather_bytes = 0;
  int64_t reduce_scatter_bytes = 0;
  int64_t all_reduce_bytes = 0;
  int64_t context_bytes = 0;
  int64_t control_bytes = 0;       // Gradient norms, losses and requests. For comparison with a run.
  int64_t optimizer_bytes = 0;     // Matrices that Muon orthogonalizes.
  int64_t wire_bytes = 0;          // Sent by all ranks of a node to other nodes, the mean over nodes.
  MemoryPeaks peaks;               // Of rank 0, as in the metrics of a run.
  int64_t context_peak_bytes = 0;  // Of rank 0: buffers of attention over split sequences.
  int64_t scratch_bytes = 0;
  int64_t heap_bytes = 0;  // Peak of rank 0's node memory over all steps; its pages stay resident.
  int64_t divisor = 1;     // See Note [Scaled replay].
  int64_t events = 0;
};

// The shape of a microbatch of a rank, with whole sequences also where ranks split them.
PartShape ShapeOfMicrobatch(const LlamaConfig& model, const RunPlan& plan, int threads);

// True if all nodes do the same. REQUIRES: ranks fill the nodes evenly, in order.
bool NodesAreAlike(const RunPlan& plan, const NodeMap& nodes);

// The divisor for a machine that runs `simulations` replays at once, which share its memory.
// Errors: kResourceExhausted (too little memory here).
absl::StatusOr<int64_t> ChooseDivisor(const ReplayInput& input, int simulations = 1);

// Thread safety: several threads may replay at once.
// Errors: kInvalidArgument (a step that is too long to be simulated), kInternal, kResourceExhausted (the
// simulation itself failed).
absl::StatusOr<ReplayResult> ReplayStep(const ReplayInput& input);

}  // namespace weft
