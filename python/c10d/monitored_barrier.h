// A barrier whose errors name the ranks that did not arrive.
//
// Rank 0 waits for the keys of all ranks in the store of the group, then tells the outcome to the others. No
// engine is used, so that it works while ranks hang in a collective, and a barrier that fails leaves nothing
// behind.
//
// Thread safety: one call at a time.
// Collective: all ranks of the group, in one order.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace weft::python {

class MonitoredBarrier {
 public:
  // `prefix`: the same on all ranks, and different for each group that uses the store.
  MonitoredBarrier(c10::intrusive_ptr<::c10d::Store> store, std::string prefix, int rank, int size);

  // Blocks until all ranks have arrived. Notices signals.
  // Errors: DistBackendError. On rank 0 it names all missing ranks; without `names_all` it begins with the
  //   first, as gloo's. On other ranks it has the message of rank 0.
  void Wait(std::chrono::milliseconds timeout, bool names_all);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  std::string Key(uint64_t number, const std::string& what) const;
  bool WaitForKeys(const std::vector<std::string>& keys, TimePoint deadline);
  std::vector<int> MissingRanks();

  const c10::intrusive_ptr<::c10d::Store> store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
  uint64_t number_ = 0;  // Number of the last barrier. A rank that missed one is behind the others.
};

}  // namespace weft::python
