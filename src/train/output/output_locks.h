// Wait for outputs that a rank of an earlier attempt still has locked.
//
// Note [Locks of an earlier attempt]
// Problem: when `weft launch` starts an attempt, rank 0 of the one before may still run, for example in a
//   long flush, or behind a link that was cut. It still holds its locks. The new run would refuse its outputs
//   as those of another run, with exit code 2, after which nothing is restarted.
// Rule: the first rank of a restart waits for the locks before it opens its outputs, for a limited time.
// Why it suffices: the locks of a process end with it.
// Without the limit: a run that another run really keeps from its outputs would never end.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/time/time.h>

#include "src/train/output/run_console.h"
#include "weft/train/config.h"

namespace weft {

// Waits until nobody else has locked (`flock`) the folder of checkpoints, the file of metrics or the folder
// of the export: at most for `limit`, and only while `is_stopped` is false. Prints a line if it waits.
// After the limit, a lock that is left is an error of the code that opens the output. Errors: kCancelled
// (stopped).
absl::Status WaitForLockedOutputs(const TrainConfig& config, absl::Duration limit,
                                  absl::FunctionRef<bool()> is_stopped, RunConsole& console);

}  // namespace weft
