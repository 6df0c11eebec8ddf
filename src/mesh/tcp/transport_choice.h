// Choice between MPI and TCP sockets for the messages of an MPI job whose options leave it open. See "Sockets
// in place of MPI" in docs/launching.md.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "src/mesh/tcp/tcp_endpoint.h"
#include "weft/mesh/bootstrap.h"

namespace weft::internal {

// Settings of MPI in the environment of a process.
struct MpiSettings {
  std::string variable;  // Name of one that chooses a transport or ports, such as UCX_TLS; may be empty.
  std::string network;   // Value of OMPI_MCA_btl_tcp_if_include; may be empty.

  // `environment` is as `environ`. MPI_Init may set such variables by itself: read them before.
  static MpiSettings Read(const char* const* environment);
};

// Facts about the host of one rank that decide the transport. Ranks exchange them.
struct TransportFacts {
  // Why messages travel over MPI, such as "the device infiniband/mlx5_0"; empty if they need not.
  std::string reason_for_mpi;
  TcpEndpoint endpoint;  // Without loopback interfaces. Only set if `reason_for_mpi` is empty.

  // `network`: see StoreBootstrapOptions::network. `devices` has a folder for each class of devices.
  // Errors: kInvalidArgument (no other reason for MPI, and `network` names an interface that does not exist).
  static absl::StatusOr<TransportFacts> OfThisHost(const MpiSettings& settings, const std::string& network,
                                                   const std::filesystem::path& devices = "/sys/class");

  // Text, and back.
  std::string Encode() const;
  // Errors: those of TcpEndpoint::Decode.
  static absl::StatusOr<TransportFacts> Decode(std::string_view text);
};

// Network interfaces of the sockets: `network`, or those of MPI's settings if it is empty.
std::string NetworkOfSockets(const MpiSettings& settings, const std::string& network);

// Returns why messages between nodes travel over MPI, such as "several networks (eth0, ib0) on the host of
// rank 3"; empty if they travel over sockets. Depends on `nodes` and `facts` alone: all ranks decide alike.
// REQUIRES: `facts` has those of each rank of `nodes`.
std::string ReasonForMpi(const NodeMap& nodes, const std::vector<TransportFacts>& facts);

}  // namespace weft::internal
