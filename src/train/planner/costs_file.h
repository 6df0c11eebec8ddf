// The file of measured costs, which later forecasts on this machine read.
#pragma once

#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/train/planner/costs.h"
#include "weft/train/planner.h"

namespace weft {

// The file that the options name, or that in the user's cache folder.
std::string CostsPath(const PlanOptions& options);

// The costs in the file at `path`, or the built-in ones if there is none. A file that the options name must
// exist, unless they ask for a measurement.
// Errors: kNotFound, kPermissionDenied, kUnavailable, kDataLoss (names the path).
absl::StatusOr<MachineCosts> ReadCosts(const PlanOptions& options, const std::string& path);

// Creates the folder of `path` if it does not exist. Errors: kPermissionDenied, kResourceExhausted,
// kUnavailable, kDataLoss (names the path).
absl::Status WriteCosts(const MachineCosts& costs, const std::string& path);

}  // namespace weft
