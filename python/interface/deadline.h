// The end of a wait, for the extension modules. weft's own waits have the Deadline of weft/mesh/runtime.h.
#pragma once

#include <algorithm>
#include <chrono>

namespace weft::python {

// Now plus `timeout`. The timeout is clamped to [0, 1 year], as that of a Deadline, because a time point
// cannot represent longer ones.
inline std::chrono::steady_clock::time_point DeadlineAfter(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return std::chrono::steady_clock::now() + std::clamp(timeout, std::chrono::milliseconds(0), kLongest);
}

}  // namespace weft::python
