// Duplicates of a communicator, made with a deadline.
//
// MPI_Comm_dup has no deadline: it blocks as long as a rank is missing. MPI_Comm_idup does not block. A
// duplicate that misses its deadline stays pending, and completes when the last rank has started it.
//
// Thread safety: none.
// Lifetime: the parent must outlive the duplicates. The destructor leaves a pending one to MPI, with the
//   memory that MPI writes for it: no call cancels it, and any later call of MPI may complete it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>

#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <mpi.h>

#include "src/mesh/mpi/mpi_session.h"

namespace weft::internal {

class MpiDuplicates {
 public:
  explicit MpiDuplicates(MPI_Comm parent) : parent_(parent) {}
  ~MpiDuplicates();
  MpiDuplicates(const MpiDuplicates&) = delete;
  MpiDuplicates& operator=(const MpiDuplicates&) = delete;

  // Duplicates that this rank has started or must skip. The n-th duplicates of all
  // ranks are one communicator.
  int64_t count() const { return std::max(started_, skip_until_); }
  // Peers have started duplicates up to number `count` without this rank: the next Open first takes part in
  // those, and its own has the number after `count`.
  void Skip(int64_t count) { skip_until_ = std::max(skip_until_, count); }
  // Makes the next duplicate. Collective: all ranks of the parent, with equal counts.
  // Errors: kDeadlineExceeded (not all ranks called it in time), kInternal (MPI failed).
  absl::StatusOr<MpiCommunicator> Open(absl::Duration timeout);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  absl::Status Start();
  // Waits until the pending duplicate is made. OK if there is none.
  absl::Status Finish(TimePoint deadline);

  const MPI_Comm parent_;
  int64_t started_ = 0;
  int64_t skip_until_ = 0;
  // The duplicate that was started last, and its request. MPI holds pointers to both.
  struct Duplicate {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  // Only one is pending at a time, because Open MPI hangs if several duplicates of one communicator are.
  std::unique_ptr<Duplicate> last_ = std::make_unique<Duplicate>();
};

}  // namespace weft::internal
