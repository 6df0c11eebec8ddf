// A clock for waits, which leaves out the times in which the process was paused, as by SIGSTOP, a frozen
// control group or `docker pause`.
//
// A rank that was paused together with its peers has waited for nobody: without this clock, all of them would
// end at the deadline of the first operation after the pause. If only some ranks are paused, the others wait
// until their deadlines.
//
// Thread safety: none.
#pragma once

#include <cstdint>

#include <absl/time/time.h>

#include "weft/mesh/runtime.h"

namespace weft {

class UnpausedClock {
 public:
  // A longer time between two reads is a pause. REQUIRES: while the process runs, the wait reads far more
  // often.
  static constexpr int64_t kPauseNs = 5'000'000'000;

  // `now_ns`: the time of a monotonic clock, here and below.
  explicit UnpausedClock(int64_t now_ns) : last_read_ns_(now_ns) {}

  // `now_ns` without all pauses so far. A time before that of the last read ends no pause.
  int64_t Read(int64_t now_ns) {
    if (now_ns < last_read_ns_) return now_ns - paused_ns_;
    if (now_ns - last_read_ns_ > kPauseNs) {
      paused_ns_ += now_ns - last_read_ns_;
      resumed_ns_ = now_ns;
    }
    last_read_ns_ = now_ns;
    return now_ns - paused_ns_;
  }
  // The `now_ns` of the first read after the last pause; 0 if there was none.
  int64_t resumed_ns() const { return resumed_ns_; }

 private:
  int64_t last_read_ns_;
  int64_t resumed_ns_ = 0;
  int64_t paused_ns_ = 0;
};

// As Deadline, without pauses. REQUIRES: as UnpausedClock. Lifetime: the runtime must outlive it.
class UnpausedDeadline {
 public:
  // Ends `timeout` from now.
  UnpausedDeadline(const Runtime& runtime, absl::Duration timeout)
      : runtime_(runtime), begin_ns_(runtime.NowNs()), timeout_(timeout), clock_(begin_ns_) {}

  // Zero or less once it has passed.
  absl::Duration Left() { return timeout_ - absl::Nanoseconds(clock_.Read(runtime_.NowNs()) - begin_ns_); }
  bool HasPassed() { return Left() <= absl::ZeroDuration(); }

 private:
  const Runtime& runtime_;
  const int64_t begin_ns_;
  const absl::Duration timeout_;
  UnpausedClock clock_;
};

}  // namespace weft
