// Owners of MPI and of its communicators: MPI is initialized if necessary, and finalized after all its users.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <mpi.h>

#include "src/mesh/base/call_guard.h"
#include "weft/mesh/mpi_bootstrap.h"

namespace weft::internal {

// OK for MPI_SUCCESS. Otherwise kInternal with the message "<call>: <MPI's error string>".
absl::Status MpiStatus(int code, std::string_view call);

// Note [MPI teardown]
// Problem: MPI_Win_free and MPI_Finalize wait for all ranks. A rank may be stopped, hang in a read, or have
// ended; no MPI call reports that, and none can be canceled. MPI_Abort itself may block.
// Rule: requests that may never complete are freed without waiting for them. Each blocking call runs under a
// CallGuard, whose thread ends the process by _Exit(86) at the deadline. A rank that knows of a missing peer
// (a collective of the bootstrap missed its deadline) makes no such call: it ends at once.
// Why it suffices: a rank that fails tells its peers or lets them miss a deadline, so each rank returns, ends
// by a guard, or is the missing one. As soon as a process ends without MPI_Finalize, mpirun ends the others,
// also stopped ones.
// Without it: one stuck rank and one failed rank keep the job in MPI_Finalize forever.
class MpiSession {
 public:
  // Collective: all ranks, if MPI is not initialized.
  // Errors: kFailedPrecondition (no MPI_THREAD_MULTIPLE), kInternal (has MPI's error message).
  static absl::StatusOr<std::shared_ptr<MpiSession>> Open(const MpiBootstrapOptions& options);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // Frees a request that may never complete. Keeps `memory`, which MPI may still access for it, until MPI is
  // finalized.
  void Abandon(MPI_Request& request, std::shared_ptr<const void> memory);

  // Guards a blocking MPI call, which must return within the timeout of its phase. `call` names it.
  // REQUIRES: no other guarded call is in progress.
  CallGuard::Scope Guard(std::string_view call);
  // OK, or why the watchdog did not start on this rank, so that its calls have no deadline. Ranks must agree
  // on it.
  // Errors: kResourceExhausted (the system gives the process no thread; names the limits).
  const absl::Status& watchdog_status() const { return watchdog_status_; }
  // Ends the phase of start-up, which has a timeout of its own.
  void EndStartup() { starting_ = false; }
  absl::Duration timeout() const { return options_.timeout; }

  // Records whether the last collective of a bootstrap met its deadline.
  void SetPeersMissing(const absl::Status& missing) { peers_missing_ = missing; }
  // Ends the process by _Exit(86) if that collective missed its deadline and the watchdog is on.
  void EndIfPeersAreMissing() const;

 private:
  explicit MpiSession(const MpiBootstrapOptions& options);
  absl::Status Initialize();

  const MpiBootstrapOptions options_;
  bool owner_ = false;  // True if this session initialized MPI.
  bool starting_ = true;
  absl::Status peers_missing_;
  std::vector<std::shared_ptr<const void>> abandoned_;
  absl::Status watchdog_status_;
  std::unique_ptr<CallGuard> guard_;  // Null without the watchdog, and if watchdog_status_ is an error.
};

// Owner of a duplicated or split communicator, whose error handler is MPI_ERRORS_RETURN.
//
// Lifetime: the session must outlive it.
class MpiCommunicator {
 public:
  // Collective: all ranks of `parent`.
  static absl::StatusOr<MpiCommunicator> Duplicate(MpiSession& session, MPI_Comm parent);
  // Owns `comm`, which nothing else may free.
  static absl::StatusOr<MpiCommunicator> Adopt(MPI_Comm comm);
  // The ranks of `parent` that share this rank's node, in the same order.
  // Collective: all ranks of `parent`.
  static absl::StatusOr<MpiCommunicator> SplitByNode(MpiSession& session, MPI_Comm parent);
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
