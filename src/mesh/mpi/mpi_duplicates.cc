#include "src/mesh/mpi/mpi_duplicates.h"

#include "src/mesh/base/backoff.h"
#include "src/mesh/base/deadline.h"
#include "weft/core/status.h"

namespace weft::internal {

MpiDuplicates::~MpiDuplicates() {
  if (last_->request != MPI_REQUEST_NULL) static_cast<void>(last_.release());
}

absl::Status MpiDuplicates::Start() {
  ++started_;
  return MpiStatus(MPI_Comm_idup(parent_, &last_->comm, &last_->request), "MPI_Comm_idup");
}

absl::Status MpiDuplicates::Finish(TimePoint deadline) {
  Backoff backoff;
  while (true) {
    int done = 0;
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Test(&last_->request, &done, MPI_STATUS_IGNORE), "MPI_Test (MPI_Comm_idup)"));
    if (done != 0) return absl::OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          "opening a link between nodes: not all ranks arrived in time; check what stopped there, or set a "
          "longer WEFT_TIMEOUT_S");
    }
    backoff.Pause();
  }
}

absl::StatusOr<MpiCommunicator> MpiDuplicates::Open(absl::Duration timeout) {
  const TimePoint deadline = DeadlineAfter(timeout);
  const int64_t own = count() + 1;
  while (true) {
    // Skipped duplicates are left to MPI_Finalize, as after MpiCommunicator::Retire.
    WEFT_RETURN_IF_ERROR(Finish(deadline));
    if (started_ == own) return MpiCommunicator::Adopt(last_->comm);
    WEFT_RETURN_IF_ERROR(Start());
  }
}

}  // namespace weft::internal
