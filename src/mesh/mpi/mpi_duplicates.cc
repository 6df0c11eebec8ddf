#include "src/mesh/mpi/mpi_duplicates.h"

#include <chrono>

#include "src/mesh/base/deadline.h"
#include "weft/core/backoff.h"
#include "weft/core/status.h"

namespace weft::internal {

absl::Status MpiDuplicates::Start() {
  Pending& pending = pending_.emplace_back();
  ++started_;
  return MpiStatus(MPI_Comm_idup(parent_, &pending.comm, &pending.request), "MPI_Comm_idup");
}

absl::Status MpiDuplicates::Skip(int64_t count) {
  while (started_ < count) WEFT_RETURN_IF_ERROR(Start());
  return absl::OkStatus();
}

absl::StatusOr<bool> MpiDuplicates::TestAll() {
  while (true) {
    int done = 0;
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Test(&pending_.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test (MPI_Comm_idup)"));
    if (done == 0) return false;
    if (pending_.size() == 1) return true;
    pending_.pop_front();  // Left to MPI_Finalize, as after MpiCommunicator::Retire.
  }
}

absl::StatusOr<MpiCommunicator> MpiDuplicates::Open(absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(Start());
  const auto deadline = DeadlineAfter(timeout);
  Backoff backoff;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const bool made, TestAll());
    if (made) break;
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "opening a link between nodes: not all ranks arrived within ", absl::FormatDuration(timeout),
          "; check what stopped there, or set a longer WEFT_TIMEOUT_S"));
    }
    backoff.Pause();
  }
  const MPI_Comm comm = pending_.front().comm;
  pending_.pop_front();
  return MpiCommunicator::Adopt(comm);
}

}  // namespace weft::internal
