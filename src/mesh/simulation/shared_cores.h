// Cores of a simulated node, which its fibers share: processor sharing on virtual time.
//
// The *progress* of the cores is the core time, in nanoseconds, that a thread which was busy all along would
// have received. It grows by one a nanosecond while at most as many threads are busy as there are cores, and
// by cores / threads otherwise. A computation ends when the progress reaches a value that Begin fixes,
// whatever other threads do meanwhile.
//
// Pure: the caller passes the time, and waits. Thread safety: none.
#pragma once

#include <cstdint>

namespace weft::internal {

class SharedCores {
 public:
  explicit SharedCores(int cores) : cores_(cores) {}

  // `threads` more threads are busy from now on. Returns the progress at which each has received `core_ns`.
  double Begin(int64_t now_ns, double core_ns, int threads);
  // The time until the progress is `end` if no thread begins or ends meanwhile; 0 if it has been reached.
  int64_t Remaining(int64_t now_ns, double end);
  // `threads` threads are idle from now on. Returns true if others run faster now.
  bool End(int64_t now_ns, int threads);

 private:
  double rate() const { return busy_ <= cores_ ? 1.0 : static_cast<double>(cores_) / busy_; }
  void Advance(int64_t now_ns);

  int cores_;
  int busy_ = 0;
  double progress_ns_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace weft::internal
