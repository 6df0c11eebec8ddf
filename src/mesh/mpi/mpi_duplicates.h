// Duplicates of a communicator, which are made with a deadline.
//
// MPI_Comm_dup waits without a deadline, and for ever if a rank does not come. Here a duplicate that misses
// its deadline stays pending, and completes when the last rank has started it.
//
// Thread safety: none.
// Lifetime: the parent must outlive the duplicates. The destructor leaves pending ones to MPI.
#pragma once

#include <cstdint>
#include <deque>

#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <mpi.h>

#include "src/mesh/mpi/mpi_session.h"

namespace weft::internal {

class MpiDuplicates {
 public:
  explicit MpiDuplicates(MPI_Comm parent) : parent_(parent) {}
  MpiDuplicates(const MpiDuplicates&) = delete;
  MpiDuplicates& operator=(const MpiDuplicates&) = delete;

  // Duplicates that this rank has started. The n-th one of each rank belong together.
  int64_t started() const { return started_; }
  // Takes part in duplicates that peers have started without this rank, so that `started()` becomes `count`.
  absl::Status Skip(int64_t count);
  // Starts the next duplicate, and waits until it is made. Collective: all ranks of the parent.
  // Errors: kDeadlineExceeded (not all ranks have come), kInternal (MPI failed).
  absl::StatusOr<MpiCommunicator> Open(absl::Duration timeout);

 private:
  struct Pending {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  absl::Status Start();
  // True if the newest duplicate and all before it are made. Retires those before it.
  absl::StatusOr<bool> TestAll();

  const MPI_Comm parent_;
  int64_t started_ = 0;
  std::deque<Pending> pending_;  // In the order of their starts. MPI holds pointers to them.
};

}  // namespace weft::internal
