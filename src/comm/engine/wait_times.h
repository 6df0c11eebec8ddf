// Times for which the threads of a rank poll, yield and sleep while they wait. See Note [Progress] in
// engine_shell.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <absl/time/time.h>

#include "weft/mesh/runtime.h"

namespace weft {

inline constexpr int64_t kMicrosecond = 1'000;  // Nanoseconds.
inline constexpr int64_t kMillisecond = 1'000'000;
// Longer waits are cut to this one: the sum of a time and a wait must fit 64 bits.
inline constexpr absl::Duration kLongestWait = absl::Hours(24 * 365);

struct WaitTimes {
  bool has_core;               // No other rank needs the hardware thread of a thread that polls.
  int64_t poll_ns;             // A waiting thread polls for this long before it yields.
  int64_t yield_ns;            // It then yields, until it has found nothing to do for this long, and sleeps.
  int64_t wire_yield_ns;       // In place of yield_ns while the wire is in use,
  int64_t fast_wire_yield_ns;  // and if the link is fast.
  // A thread that moves data between nodes yields when it has run for this long, if ranks share hardware
  // threads.
  int64_t turn_ns;
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
// While the wire is in use, a rank sleeps sooner: socket buffers hold what arrives. On a fast link it yields
// for longer than all messages in flight take (Note [Wire budget]). MPI moves large messages within a node in
// polls of both ranks, so a sleep would stall them, and it moves several at the same time, so that none may
// end for as long. See Note [Runs of slices].
// Each change of threads costs microseconds and what the caches hold, but other ranks must use the wire
// before the time slice of one ends.
inline WaitTimes TimesOf(Runtime& runtime, bool has_core) {
  // Virtual time passes only while a fiber yields.
  if (runtime.simulation() != nullptr) {
    return {.has_core = false,
            .poll_ns = 0,
            .yield_ns = 30 * kMicrosecond,
            .wire_yield_ns = 30 * kMicrosecond,
            .fast_wire_yield_ns = 30 * kMicrosecond,
            .turn_ns = 0,
            .beside_waiter_ns = 125 * kMicrosecond,
            .after_wait_ns = 0,
            .series_waits = 0};
  }
  WaitTimes times{.has_core = has_core,
                  .poll_ns = 0,
                  .yield_ns = 250 * kMicrosecond,
                  .wire_yield_ns = 30 * kMicrosecond,
                  .fast_wire_yield_ns = kMillisecond,
                  .turn_ns = 200 * kMicrosecond,
                  .beside_waiter_ns = kMillisecond,
                  .after_wait_ns = kMillisecond,
                  .series_waits = 4};
  if (has_core) {
    times.poll_ns = 10 * kMicrosecond;
    times.yield_ns = 30 * kMicrosecond;
    times.beside_waiter_ns = times.after_wait_ns = 125 * kMicrosecond;
    times.series_waits = 1;
  }
  return times;
}

// Interval between two polls of the wire. It grows with the time since the last progress, so that a sleep
// adds little to the total wait.
inline constexpr int64_t kMaxWirePollIntervalNs = 500 * kMicrosecond;
inline constexpr int64_t kWirePollsPerWait = 16;
inline int64_t WirePollInterval(int64_t waited_ns, int64_t shortest_ns) {
  return std::clamp(waited_ns / kWirePollsPerWait, shortest_ns, kMaxWirePollIntervalNs);
}
// The shortest interval on any link. On fast links, the intervals below are cut down to it.
inline constexpr int64_t kFastestWirePollIntervalNs = 10 * kMicrosecond;
inline int64_t CutToWire(int64_t interval_ns, int64_t wire_interval_ns) {
  return std::clamp(wire_interval_ns, kFastestWirePollIntervalNs, interval_ns);
}
// The shortest interval while a thread waits, after it has yielded for a while.
inline constexpr int64_t kWirePollIntervalNs = 50 * kMicrosecond;
// The shortest interval while no thread waits. Each poll takes time from a rank that computes, and the
// system's buffers hold what arrives meanwhile.
inline constexpr int64_t kUnattendedWirePollIntervalNs = 250 * kMicrosecond;
// The shortest interval for the first polls after an idle time: the first messages of peers arrive soon.
inline constexpr int64_t kInitialWirePollIntervalNs = 100 * kMicrosecond;
inline constexpr int kInitialWirePolls = 4;

// The steps of a waiting thread between two polls of the core.
class WaitSteps {
 public:
  enum class Step : uint8_t { kPoll, kWatchDoorbell, kYield, kSleep };
  // The outcome of a poll.
  struct Polled {
    bool advanced;
    bool uses_wire;
    bool has_fast_link;
    int64_t now_ns;
  };

  WaitSteps(const WaitTimes& times, int64_t begin_ns)
      : times_(times), idle_since_ns_(begin_ns), turn_began_ns_(begin_ns) {}

  Step Next(const Polled& polled) {
    if (std::exchange(has_yielded_, false)) turn_began_ns_ = polled.now_ns;
    const Step step = Choose(polled);
    has_yielded_ = step == Step::kYield;
    return step;
  }
  // Time for which the polls up to the last one have found nothing to do.
  int64_t idle_ns(int64_t now_ns) const { return now_ns - idle_since_ns_; }

 private:
  Step Choose(const Polled& polled) {
    if (polled.advanced) {
      idle_since_ns_ = polled.now_ns;
      const bool turn_ends =
          polled.uses_wire && !times_.has_core && polled.now_ns - turn_began_ns_ >= times_.turn_ns;
      return turn_ends ? Step::kYield : Step::kPoll;
    }
    const int64_t wire_yield_ns = polled.has_fast_link ? times_.fast_wire_yield_ns : times_.wire_yield_ns;
    if (idle_ns(polled.now_ns) >= (polled.uses_wire ? wire_yield_ns : times_.yield_ns)) return Step::kSleep;
    if (idle_ns(polled.now_ns) >= times_.poll_ns) return Step::kYield;
    return polled.uses_wire ? Step::kPoll : Step::kWatchDoorbell;
  }

  const WaitTimes& times_;
  int64_t idle_since_ns_;
  int64_t turn_began_ns_;  // The first poll after the last yield.
  bool has_yielded_ = false;
};

}  // namespace weft
