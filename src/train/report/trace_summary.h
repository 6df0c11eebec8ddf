// Times of the parameter groups and of the modules in a trace file.
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

// Mean times in milliseconds of a step of a rank, without those of modules inside and without waits.
struct ModuleTimes {
  std::string module;  // Numbers are "*": one row has the module of all blocks.
  double forward_ms = 0;
  double backward_ms = 0;  // With recomputed forwards.
  double update_ms = 0;    // Of the optimizer's rows, "(clip)" and "(update)".
  double products_ms = 0;  // Matrix products in these times. Those of packed attention are not counted.
};

struct TraceSummary {
  int64_t ranks = 0;
  int64_t first_step = 0, last_step = 0;
  double step_ms = 0;     // Mean over ranks and steps.
  double exposed_ms = 0;  // Waits of a step, for all operations.
  // Parameter groups in the order of forward, then a row in parentheses for each other lane with operations,
  // and for each barrier of all groups. "root" has the parameters outside of all blocks.
  std::vector<GroupTimes> groups;
  std::vector<ModuleTimes> modules;  // In the order of their first end, so modules inside come first.
};

// Errors: kNotFound, kPermissionDenied, kDataLoss (not a trace of weft; names file and line).
absl::StatusOr<TraceSummary> ReadTraceSummary(const std::string& path);

// The name of a group in at most `columns`, without its beginning if it is longer.
std::string ShortenedName(const std::string& name, size_t columns);

// Two tables of at most 80 columns. Long names lose their beginning.
std::string ToText(const TraceSummary& summary);

}  // namespace weft
