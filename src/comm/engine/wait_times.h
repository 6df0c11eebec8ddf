// Times for which the threads of a rank poll, yield and sleep while they wait. See Note [Progress] in
// engine_shell.h.
#pragma once

#include <cstdint>

#include <absl/time/time.h>

#include "weft/mesh/runtime.h"

namespace weft {

inline constexpr int64_t kMicrosecond = 1'000;  // Nanoseconds.
inline constexpr int64_t kMillisecond = 1'000'000;
// Longer waits are cut to this one: the sum of a time and a wait must fit 64 bits.
inline constexpr absl::Duration kLongestWait = absl::Hours(24 * 365);

struct WaitTimes {
  bool has_core;     // No other rank needs the hardware thread of a thread that polls.
  int64_t poll_ns;   // A waiting thread polls for this long before it yields.
  int64_t yield_ns;  // It then yields, until it has found nothing to do for this long, and sleeps.
  // Sleep of the progress thread while another thread waits and polls. It bounds the delay of data that an
  // operation moves if it is submitted soon after a wait, and for which no thread waits.
  int64_t beside_waiter_ns;
  // Sleep of an idle progress thread if other threads have waited since it last looked, at least
  // `series_waits` times. 0: it parks at once.
  int64_t after_wait_ns;
  uint32_t series_waits;
};

// A rank with a hardware thread of its own polls before it yields: a yield beside other programs may take a
// time slice of milliseconds. Its progress thread sleeps meanwhile, so a rank that is bound to one core
// polls, too. It then yields for about as long as it takes to wake a sleeper.
// Ranks that share hardware threads yield at once, and for longer: others run meanwhile, and if all ranks
// slept, the last one would have to wake them one by one. Their progress threads wake less often. Several
// waits between two looks of a progress thread are those of small operations.
inline WaitTimes TimesOf(Runtime& runtime, bool has_core) {
  // Virtual time passes only while a fiber yields.
  if (runtime.simulation() != nullptr) return {false, 0, 30 * kMicrosecond, 125 * kMicrosecond, 0, 0};
  if (has_core)
    return {true, 10 * kMicrosecond, 30 * kMicrosecond, 125 * kMicrosecond, 125 * kMicrosecond, 1};
  return {false, 0, 250 * kMicrosecond, kMillisecond, kMillisecond, 4};
}

}  // namespace weft
