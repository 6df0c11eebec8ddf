// How much a simulation test does: all of it, or, where WEFT_SCHEDULES is set (sanitizers and coverage, whose
// builds are slow), as many schedules as that says, and fewer ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace weft::testing {

inline std::optional<uint64_t> SchedulesAskedFor() {
  const char* asked = std::getenv("WEFT_SCHEDULES");
  if (asked == nullptr) return std::nullopt;
  return std::stoull(asked);
}
inline uint64_t ScheduleCount(uint64_t all) { return std::min(all, SchedulesAskedFor().value_or(all)); }
inline int LargeWorld() { return SchedulesAskedFor() ? 128 : 1024; }

}  // namespace weft::testing
