// Whether a run will be able to write what it was told to, found out before it starts. Nothing is left
// behind.
#pragma once

#include <string>

#include <absl/status/status.h>

#include "weft/train/config.h"

namespace weft {

// The metrics file and the configuration beside it can be written, and the export's folder made or written
// to. Errors: kNotFound, kPermissionDenied (names the path).
absl::Status CheckOutputs(const OutputOptions& output);

// "run.jsonl" -> "run.config.json".
std::string ConfigPathBeside(const std::string& metrics_file);

}  // namespace weft
