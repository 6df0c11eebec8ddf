// JSON of the planner: the file of measured costs, and the report for machines.
#pragma once

#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "src/train/planner/costs.h"
#include "src/train/planner/plan_report.h"

namespace weft {

std::string FormatCosts(const MachineCosts& costs);
// Errors: kDataLoss (not a file of costs; names `path`).
absl::StatusOr<MachineCosts> ParseCosts(std::string_view text, const std::string& path);

std::string FormatJson(const PlanReport& report);

}  // namespace weft
