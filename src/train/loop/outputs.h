// Checks of a run's outputs before it starts: each can be written, and none replaces a file of the run.
#pragma once

#include <string>

#include <absl/status/status.h>

#include "src/train/loop/inputs.h"
#include "weft/train/config.h"

namespace weft {

// Checks the metrics file, the configuration beside it, and the files of the export. Leaves no new file.
// Errors: kInvalidArgument (an output is the file of an input or of another output, by whatever path; names
//   both flags); kNotFound, kPermissionDenied, kResourceExhausted, kDataLoss (an output cannot be written;
//   names the path).
absl::Status CheckOutputs(const TrainConfig& config, const TrainInputs& inputs);

// "run.jsonl" -> "run.config.json".
std::string ConfigPathBeside(const std::string& metrics_file);

}  // namespace weft
