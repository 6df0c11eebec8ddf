// Reports of runs, for `weft report` and `weft trace`: one HTML page from metrics and a trace, and the times
// of parameter groups in a trace.
//
// Thread safety: any thread. No ranks are needed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft {

struct ReportOptions {
  std::vector<std::string> runs;  // Files of --metrics. The page compares several of them.
  std::string trace;              // File of --trace; empty: none.
  std::string output;             // The page to write; a file of that name is replaced.

  static constexpr size_t kMaxRuns = 6;  // As many as a chart has colors.
};

// Writes the page: curves, a summary, bytes, the trace and the configuration of the runs. It loads nothing
// from elsewhere and has no script.
// REQUIRES: 1 to kMaxRuns runs.
// Errors: kNotFound, kPermissionDenied, kResourceExhausted, kUnavailable, kDataLoss (a file is not one of
//   weft; names the file and the line); kInvalidArgument (the output is one of the inputs).
absl::Status WriteReport(const ReportOptions& options);

// The mean times of each parameter group and of each module over the ranks and steps of a trace, as two
// tables of at most 80 columns.
// Errors: kNotFound, kPermissionDenied, kUnavailable, kDataLoss (names the file and the line).
absl::StatusOr<std::string> SummarizeTrace(const std::string& path);

}  // namespace weft
