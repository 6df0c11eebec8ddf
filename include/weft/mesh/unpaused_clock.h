// A clock that leaves out the times in which the process was paused, as by SIGSTOP, a frozen control group or
// `docker pause`.
//
// A rank that was paused together with its peers has waited for nobody: without this clock, all of them would
// end at the deadline of the first operation after the pause. If only some ranks are paused, the clocks of
// the others go on, and so do their deadlines.
//
// Thread safety: any thread may call.
#pragma once

#include <atomic>
#include <cstdint>

#include "weft/core/mutex.h"

namespace weft {

class UnpausedClock {
 public:
  // Nobody reads the clock for so long while the process runs: threads that wait read it all the time, and
  // the engine's watchdog every tenth of a second.
  static constexpr int64_t kPauseNs = 5'000'000'000;

  // `now_ns`: the time of the system's monotonic clock, here and below.
  explicit UnpausedClock(int64_t now_ns) : last_read_ns_(now_ns) {}

  // The clock's time: `now_ns` without all pauses so far. A time since the last read of more than kPauseNs is
  // one.
  int64_t Read(int64_t now_ns);

 private:
  Mutex mutex_;  // Held while a pause is counted.
  std::atomic<int64_t> last_read_ns_;
  std::atomic<int64_t> paused_ns_ = 0;
};

}  // namespace weft
