// MPI itself: brought up if nobody did, and taken down again after everything that uses it.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <mpi.h>

namespace weft::internal {

// OK for MPI_SUCCESS, else kInternal: "<call>: <what MPI says of the code>".
absl::Status MpiStatus(int code, std::string_view call);

// Note [Taking MPI down]
// MPI_Win_free and MPI_Finalize wait for all ranks. They cannot hang for good: a rank that fails returns from
// its main function and comes here; its peers wait for it with deadlines, fail, and come here too; and when a
// process dies without MPI_Finalize, mpirun ends the others. So teardown is the same after a failure as after
// success, and takes at most as long as the peers' deadlines. Requests that nobody will match any more are
// freed first, not waited for.
class MpiSession {
 public:
  // Errors: as MakeMpiBootstrap.
  static absl::StatusOr<std::shared_ptr<MpiSession>> Open();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // Frees a request that may never finish, and keeps the memory that MPI may still use for it until MPI is
  // down.
  void Abandon(MPI_Request& request, std::shared_ptr<const void> memory);

 private:
  explicit MpiSession(bool owner) : owner_(owner) {}
  const bool owner_;
  std::vector<std::shared_ptr<const void>> abandoned_;
};

// An own copy of a communicator, whose errors return.
//
// Lifetime: within its session's.
class MpiCommunicator {
 public:
  // Collective: all ranks of `parent`.
  static absl::StatusOr<MpiCommunicator> Duplicate(MPI_Comm parent);
  // The ranks of `parent` that can share memory, in the same order.
  static absl::StatusOr<MpiCommunicator> SplitByNode(MPI_Comm parent);
  MpiCommunicator(MpiCommunicator&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  MpiCommunicator& operator=(MpiCommunicator&&) = delete;
  ~MpiCommunicator();

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int size() const;
  // Leaves it to MPI_Finalize. MPI gives the number of a freed communicator to the next new one, where
  // messages that were sent on the old one and not received would then turn up.
  void Retire() { comm_ = MPI_COMM_NULL; }

 private:
  explicit MpiCommunicator(MPI_Comm comm) : comm_(comm) {}
  MPI_Comm comm_;
};

}  // namespace weft::internal
