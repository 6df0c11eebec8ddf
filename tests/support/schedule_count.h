// Number of schedules, ranks and dtypes of long tests. The environment variable WEFT_SCHEDULES limits them;
// it is set for the slow builds with sanitizers and for coverage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace weft::testing {

inline std::optional<uint64_t> ScheduleLimit() {
  const char* asked = std::getenv("WEFT_SCHEDULES");
  if (asked == nullptr) return std::nullopt;
  return std::stoull(asked);
}
inline uint64_t ScheduleCount(uint64_t all) { return std::min(all, ScheduleLimit().value_or(all)); }
inline int LargeWorld() { return ScheduleLimit() ? 128 : 1024; }

}  // namespace weft::testing
