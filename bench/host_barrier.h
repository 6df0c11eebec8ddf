// Barrier of the ranks of a program on one host. The suite's programs in C++ start a measurement from it:
// barriers of their libraries let ranks go at times that differ by as much as a small collective takes.
// `bench/peers/host_barrier.py` is one for programs in Python.
//
// Uses only the standard library and POSIX, because peers are built without weft.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::bench {

class HostBarrier {
 public:
  // All ranks construct it, with the same number of ranks. It lies in a file beside the suite's socket, which
  // the suite removes. Errors: a file that cannot be made or mapped ends the process with a message.
  explicit HostBarrier(int ranks);
  ~HostBarrier();
  HostBarrier(const HostBarrier&) = delete;
  HostBarrier& operator=(const HostBarrier&) = delete;

  // Returns once all ranks have called it as often as this one. A rank that waits yields its core if the
  // ranks are more than the cores.
  void Await();

 private:
  using Counter = std::atomic<uint64_t>;
  static_assert(Counter::is_always_lock_free);

  const uint64_t ranks_;
  const bool yields_;
  Counter* arrived_;  // Calls of all ranks.
  uint64_t calls_ = 0;
};

}  // namespace weft::bench
