// `weft report` and `weft trace`: pages and tables of the files of runs, without MPI.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/train/report.h"

namespace weft {

// `weft trace FILE`.
struct TraceCommand {
  std::string path;
};

std::string ReportHelp();
std::string TraceHelp();

// `arguments` do not include the command's word. Errors: kInvalidArgument (names the argument).
absl::StatusOr<ReportOptions> ParseReportCommand(const std::vector<std::string>& arguments);
absl::StatusOr<TraceCommand> ParseTraceCommand(const std::vector<std::string>& arguments);

}  // namespace weft
