// Check of all data of a run, before its first step.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/time/time.h>

#include "src/train/output/run_console.h"
#include "src/train/plan/inputs.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

// Checks that all tokens of the data and of the evaluation data are in the vocabulary, and that loss masks
// have bytes 0 and 1 only and leave some token a loss. Each rank reads a part of the data and of the masks. A
// line on `console` announces a check that takes long.
// Collective: all ranks. Errors: kDataLoss (names file and position, or a mask without a loss), kCancelled
// (`is_stopped` returned true on some rank), and those of Corpus::Read and Corpus::ReadLossMask.
absl::Status CheckData(Bootstrap& bootstrap, const TrainInputs& inputs, absl::FunctionRef<bool()> is_stopped,
                       RunConsole& console, absl::Duration timeout);

}  // namespace weft
