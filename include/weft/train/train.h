// A whole training run: what `weft train` does, for programs and tests that bring their own ranks.
//
// Collective: all ranks of the bootstrap, with the same configuration. Errors are agreed on: every rank
// returns the same one, but for a rank that waits in vain (kDeadlineExceeded).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>

#include <absl/status/statusor.h>

#include "weft/comm/comm_engine.h"
#include "weft/mesh/bootstrap.h"
#include "weft/train/config.h"
#include "weft/train/metrics.h"

namespace weft {

struct TrainEnvironment {
  // Whether a rank that waits past the deadline may end its process. Not for ranks that are threads.
  bool watchdog = false;
  // When it becomes true on any rank, all ranks finish the step that they are in and stop, without an export.
  const std::atomic<bool>* stop = nullptr;
  // Where rank 0 writes the configuration, progress and result; null: nowhere.
  std::FILE* output = nullptr;
  bool terminal = false;  // Whether `output` is one: progress then stays on one line.
  // How communication is scheduled: slices, windows, pieces. Changes no result. Timeout and watchdog are the
  // run's.
  EngineOptions engine;
  // Called on every rank after each step.
  std::function<void(const StepMetrics&)> on_step;
};

struct TrainReport {
  int64_t steps = 0;  // Fewer than asked for where the run was stopped.
  bool stopped = false;
  double loss = 0;                  // Of the last step.
  std::optional<double> eval_loss;  // Of the last evaluation.
  uint64_t weights_hash = 0;        // See weights_hash.h.
};

// Opens and checks data and model, shards and loads the model, opens the outputs, does the steps, and exports
// the model. REQUIRES: `config` has passed Validate.
// Errors:
//   kInvalidArgument: the configuration does not fit the ranks, the data or the model, or an output would
//     replace an input.
//   kNotFound, kPermissionDenied, kDataLoss, kUnimplemented: an input or output file, which is named.
//   kOutOfRange: the loss, the gradient norm or a weight became infinite or NaN. Names the step; nothing is
//     exported.
//   kResourceExhausted: out of memory, or a full disk.
//   kDeadlineExceeded, kAborted: a rank is missing, or failed.
absl::StatusOr<TrainReport> Train(Bootstrap& bootstrap, const TrainConfig& config,
                                  const TrainEnvironment& environment);

}  // namespace weft
