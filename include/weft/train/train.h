// Training run: the work of `weft train`, for programs and tests with ranks of their own.
//
// Collective: all ranks of the bootstrap, with the same configuration. All ranks return the same error,
//   except for a rank that waits past its deadline (kDeadlineExceeded).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/comm/comm_engine.h"
#include "weft/mesh/bootstrap.h"
#include "weft/train/config.h"
#include "weft/train/metrics.h"

namespace weft {

struct TrainEnvironment {
  // Ends the process of a rank that waits past the deadline, with exit code 86. Must be false if ranks are
  // threads.
  bool watchdog = false;
  // Stop request; may be null. Each rank reads it at the start of a step. If it is true on any rank, all
  // ranks stop after that step, save a checkpoint if there is a folder for it, and export nothing. After the
  // last step the run ends as without the request.
  const std::atomic<bool>* stop = nullptr;
  // Request for a checkpoint; may be null. The run resets it. If it is true on any rank at the start of a
  // step, all ranks save after that step. Without --checkpoint-dir it only prints a message.
  std::atomic<bool>* save = nullptr;
  // The stream to which rank 0 writes the configuration, progress and result. Null: no output. If a write
  // fails, as on a full disk, the run stops as if `stop` were true.
  std::FILE* output = nullptr;
  bool terminal = false;  // True if `output` is a terminal: progress then stays on one line.
  // Time for which rank 0 waits for outputs that another run has locked; at most half of the timeout. Only a
  // restart should wait: a rank of the attempt before it may still have them.
  absl::Duration lock_wait = absl::ZeroDuration();
  // Scheduling of communication (slices, windows, pieces), which changes no result. The run overwrites
  // timeout, share_domain, watchdog and dump_folder.
  EngineOptions engine;
  // Called on every rank after each step, with that rank's metrics.
  std::function<void(const StepMetrics&)> on_step;
};

struct TrainReport {
  int64_t steps = 0;          // Fewer than configured if the run was stopped.
  int64_t skipped_steps = 0;  // Steps among them without an update, as their loss or gradient was not finite.
  bool stopped = false;
  std::string checkpoint;           // Path of the last checkpoint that the run saved; empty: none.
  double loss = 0;                  // Loss of the last step.
  std::optional<double> eval_loss;  // Loss of the last evaluation.
  uint64_t weights_hash = 0;        // See weights_hash.h.
};

// Opens and checks data and model, shards and loads the model, opens the outputs, does the steps, and exports
// the model. REQUIRES: `config` has passed Validate.
// If metrics or events cannot be written, the run stops as if `stop` were true, and returns that error.
// Errors:
//   kInvalidArgument: the configuration does not fit the ranks, the data or the model, an output would
//     replace an input or the metrics of an earlier run, or another run exports to the same folder.
//   kNotFound, kPermissionDenied, kUnavailable, kDataLoss, kUnimplemented: an input or output file, which is
//     named.
//   kOutOfRange: the loss, the gradient norm, the evaluation loss or a weight became infinite or NaN. Names
//     the step. Or a finite weight does not fit the dtype of the export. Names the tensor. Nothing is
//     exported.
//   kResourceExhausted: out of memory, or a full disk.
//   kDeadlineExceeded, kAborted: a rank is missing, or failed.
//   kInternal: the weights of replicas differ.
absl::StatusOr<TrainReport> Train(Bootstrap& bootstrap, const TrainConfig& config,
                                  const TrainEnvironment& environment);

}  // namespace weft
