// Checks of a run's outputs before it starts: each can be written, and none replaces a file of the run.
#pragma once

#include <optional>
#include <string>

#include <absl/status/status.h>

#include "src/train/plan/inputs.h"
#include "weft/train/config.h"

namespace weft {

// Checks that no output replaces a file of the run, and that the metrics file, the configuration beside it
// and the trace can be written. OpenExport checks the rest of an export. Leaves nothing behind.
// Errors: kInvalidArgument (an output is an input's file, or another output's, whatever paths lead there;
//   names both flags; or the metrics file is not empty; or a file that no run has written is in the place of
//   the configuration beside it), kNotFound, kPermissionDenied (an output cannot be written; names the flag
//   and the path).
absl::Status CheckOutputs(const TrainConfig& config, const TrainInputs& inputs);

// "run.jsonl" and "run.json" -> "run.config.json", "lr0.1" -> "lr0.1.config.json"; nullopt for a device.
std::optional<std::string> ConfigPathBeside(const std::string& metrics_file);
// The same of the flags, which --config reads.
std::optional<std::string> FlagsPathBeside(const std::string& metrics_file);

}  // namespace weft
