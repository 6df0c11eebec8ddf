// Limits of long tests. The environment variable WEFT_SCHEDULES limits their numbers of schedules, ranks,
// dtypes and combinations; it is set for the slow builds with sanitizers and for coverage.
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
// If tests are limited, true for a third of all combinations of three choices, given by their numbers. With
// three values a choice, each pair of values of two choices is in that third (a Latin square).
inline bool IsInSample(int one, int two, int three) {
  return !ScheduleLimit() || (one + two + three) % 3 == 0;
}
inline int LargeWorld() { return ScheduleLimit() ? 128 : 1024; }

}  // namespace weft::testing
