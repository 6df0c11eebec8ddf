// Times of the parameter groups in a trace file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

namespace weft {

// Mean times in milliseconds of a step of a rank. Operations overlap with computation, except for their
// exposed time.
struct GroupTimes {
  std::string group;
  double gather_ms = 0;    // All-gathers, from start to *ready*.
  double reduce_ms = 0;    // Reduce-scatters and all-reduces.
  double forward_ms = 0;   // Of the group's modules, without the waits in it.
  double backward_ms = 0;  // The same, with recomputed forwards.
  double exposed_ms = 0;   // Waits of computation for the group's operations.
};

struct TraceSummary {
  int64_t ranks = 0;
  int64_t first_step = 0, last_step = 0;
  double step_ms = 0;     // Mean over ranks and steps.
  double exposed_ms = 0;  // Waits of a step, for all operations.
  // Parameter groups in the order of forward, then a row in parentheses for each other lane with operations.
  // "root" has the parameters outside of all blocks.
  std::vector<GroupTimes> groups;
};

// Errors: kNotFound, kPermissionDenied, kDataLoss (not a trace of weft; names file and line).
absl::StatusOr<TraceSummary> ReadTraceSummary(const std::string& path);

// The name of a group in at most `columns`, without its beginning if it is longer.
std::string ShortenedName(const std::string& name, size_t columns);

// A table of at most 80 columns. Long names of groups lose their beginning.
std::string ToText(const TraceSummary& summary);

}  // namespace weft
