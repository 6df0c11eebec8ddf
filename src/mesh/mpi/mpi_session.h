// Owners of MPI and of its communicators: MPI is initialized if necessary, and finalized after all its users.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <mpi.h>

namespace weft::internal {

// OK for MPI_SUCCESS. Otherwise kInternal with the message "<call>: <MPI's error string>".
absl::Status MpiStatus(int code, std::string_view call);

// Note [MPI teardown]
// Problem: MPI_Win_free and MPI_Finalize wait for all ranks, also after one of them has failed.
// Rule: teardown is the same after a failure as after success. Requests that may never complete are freed
// first, without waiting for them.
// Why it suffices: a rank that fails returns from its main function and reaches teardown. Its peers wait for
// it with deadlines, fail, and reach teardown too. If a process dies without MPI_Finalize, mpirun ends the
// other processes. Teardown therefore takes at most as long as the peers' deadlines.
// Without it: a rank that waits for an unmatched request in its teardown hangs forever.
class MpiSession {
 public:
  // Errors: kFailedPrecondition (no MPI_THREAD_MULTIPLE), kInternal (has MPI's error message).
  static absl::StatusOr<std::shared_ptr<MpiSession>> Open();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // Frees a request that may never complete. Keeps `memory`, which MPI may still access for it, until MPI is
  // finalized.
  void Abandon(MPI_Request& request, std::shared_ptr<const void> memory);

 private:
  explicit MpiSession(bool owner) : owner_(owner) {}
  const bool owner_;  // True if this session initialized MPI.
  std::vector<std::shared_ptr<const void>> abandoned_;
};

// Owner of a duplicated or split communicator, whose error handler is MPI_ERRORS_RETURN.
//
// Lifetime: the session must outlive it.
class MpiCommunicator {
 public:
  // Collective: all ranks of `parent`.
  static absl::StatusOr<MpiCommunicator> Duplicate(MPI_Comm parent);
  // Owns `comm`, which nothing else may free.
  static absl::StatusOr<MpiCommunicator> Adopt(MPI_Comm comm);
  // The ranks of `parent` that share this rank's node, in the same order.
  // Collective: all ranks of `parent`.
  static absl::StatusOr<MpiCommunicator> SplitByNode(MPI_Comm parent);
  MpiCommunicator(MpiCommunicator&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  MpiCommunicator& operator=(MpiCommunicator&&) = delete;
  ~MpiCommunicator();

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int size() const;
  // Leaves the communicator to MPI_Finalize. MPI reuses the context id of a freed communicator for a new one;
  // messages that were sent on the old one but never received would then arrive on the new one.
  void Retire() { comm_ = MPI_COMM_NULL; }

 private:
  explicit MpiCommunicator(MPI_Comm comm) : comm_(comm) {}
  MPI_Comm comm_;
};

}  // namespace weft::internal
