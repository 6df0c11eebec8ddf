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

// What decides the transport on the host of one rank. Ranks exchange these facts.
struct TransportFacts {
  // What speaks for MPI, such as "the device infiniband/mlx5_0". Only if this is empty, `endpoint` is set.
  std::string reason_for_mpi;
  TcpEndpoint endpoint;

  std::string Encode() const;  // Text, and back.
  // Errors: those of TcpEndpoint::Decode.
  static absl::StatusOr<TransportFacts> Decode(std::string_view text);
};

// Reads the facts. `variable`: that of TransportVariable. `network`: see StoreBootstrapOptions::network.
// `devices` has a folder for each class of devices.
// Errors: kInvalidArgument (nothing needs MPI, and `network` names an interface that does not exist).
absl::StatusOr<TransportFacts> ReadTransportFacts(std::string_view variable, const std::string& network,
                                                  const std::filesystem::path& devices = "/sys/class");

// The name of a variable in `environment` that chooses or sets up a transport of an MPI library; empty if
// there is none. `environment` is as `environ`. MPI_Init may set such variables by itself: call it before.
std::string TransportVariable(const char* const* environment);

// Returns what speaks for MPI, as "several networks (eth0, ib0) on the host of rank 3". If this is empty,
// messages between nodes travel over sockets. Depends on the arguments alone: all ranks decide alike.
// REQUIRES: `facts` has those of each rank of `nodes`.
std::string ReasonForMpi(const NodeMap& nodes, const std::vector<TransportFacts>& facts);

}  // namespace weft::internal
