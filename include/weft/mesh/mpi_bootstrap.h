// Bootstrap over MPI: each rank is a process that mpirun or srun started. Without them there is a single
// rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// Carrier of the messages between nodes: MPI, or TCP sockets of weft's own. kAuto takes the sockets if each
// node is a host of its own with one network and no device for RDMA, and no variable, such as OMPI_MCA_pml or
// UCX_TLS, chooses a transport of MPI. "Sockets in place of MPI" in docs/launching.md has the exact rules.
enum class MpiTransport : uint8_t { kAuto, kMpi, kTcp };

struct MpiBootstrapOptions {
  // Limit of start-up: MPI_Init and the first communicators. On large clusters MPI_Init takes minutes.
  absl::Duration startup_timeout = absl::Seconds(300);
  // Limit of each later collective of the bootstrap, and of its destructor.
  absl::Duration timeout = absl::Seconds(600);
  // MPI_Init, MPI_Finalize, and the calls that create and free communicators and windows wait for all ranks
  // and cannot be canceled. If one exceeds its timeout, the process prints its name and ends by _Exit(86),
  // which makes mpirun end the other ranks. If false, such a call blocks for as long as a rank is missing.
  bool watchdog = true;
  // NUMA node that this rank counts as bound to. Unset: that of its affinity.
  std::optional<int> numa_node = std::nullopt;
  // All ranks must have the same.
  MpiTransport transport = MpiTransport::kAuto;
  // Network interfaces of the sockets: see StoreBootstrapOptions::network.
  std::string network;
  // Error of this rank's options. MakeMpiBootstrap returns it on every rank: none waits for this one.
  absl::Status error = absl::OkStatus();

  // The timeouts of the environment, WEFT_STARTUP_TIMEOUT_S and WEFT_TIMEOUT_S, in seconds; WEFT_NUMA_NODE;
  // WEFT_TRANSPORT, auto, mpi or tcp; and WEFT_NETWORK. If one of these is invalid, sets `error`, which names
  // it.
  static MpiBootstrapOptions FromEnvironment();
};

// Creates the bootstrap of this process.
//
// If MPI is not initialized, initializes it with MPI_THREAD_MULTIPLE; MPI is then finalized after the
// bootstrap and its links are destroyed, and the process cannot make another bootstrap. A process that makes
// several in turn initializes MPI itself. MPI_Comm_split_type(MPI_COMM_TYPE_SHARED) determines the nodes.
// Node memory comes from MPI shared windows. MPI errors are returned as statuses and do not abort.
//
// Collective: all ranks of MPI_COMM_WORLD.
// Lifetime: the destructor waits for the destructors of all ranks, up to the timeout. After a collective of
//   the bootstrap that missed its deadline, MPI cannot be finalized: with the watchdog, the destructor ends
//   the process by _Exit(86). Links may outlive the bootstrap; node memory may not.
// Errors: the error of some rank's options, kFailedPrecondition (MPI does not provide MPI_THREAD_MULTIPLE or
//   was finalized, or weft was built without MPI), kInvalidArgument (the launcher, such as srun or the mpirun
//   of another library, started more processes than MPI connects, ranks have different transports, or a host
//   has no such network interface although messages may travel over sockets; names the remedy),
//   kResourceExhausted (the system gives a rank no thread for the watchdog; names the limits),
//   kDeadlineExceeded (names the ranks that did not start; with the watchdog the process ends instead),
//   kInternal (has MPI's error message).
absl::StatusOr<std::unique_ptr<Bootstrap>> MakeMpiBootstrap(const MpiBootstrapOptions& options);
// With the options of the environment. If they are invalid on some rank, every rank returns its error.
absl::StatusOr<std::unique_ptr<Bootstrap>> MakeMpiBootstrap();

}  // namespace weft
