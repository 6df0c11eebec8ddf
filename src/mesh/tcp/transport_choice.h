// Whether the messages of an MPI job travel over MPI or over TCP sockets, if its options leave that open.
// Sockets are faster where MPI has only TCP, too; see "Sockets in place of MPI" in docs/launching.md.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "src/mesh/tcp/tcp_endpoint.h"
#include "weft/mesh/bootstrap.h"

namespace weft::internal {

// What a rank knows about the messages of its host.
struct HostNetworks {
  TcpEndpoint endpoint;
  std::string device;    // The first device that MPI can use and sockets cannot, such as "infiniband/mlx5_0".
  std::string variable;  // Name of the first variable that chooses a transport of MPI, such as "UCX_TLS".

  // `network`: see StoreBootstrapOptions::network. `devices` has a folder for each class of devices.
  // Errors: those of TcpEndpoint::OfThisHost.
  static absl::StatusOr<HostNetworks> OfThisHost(const std::string& network,
                                                 const std::filesystem::path& devices = "/sys/class");

  // Text, and back.
  std::string Encode() const;
  // Errors: those of TcpEndpoint::Decode.
  static absl::StatusOr<HostNetworks> Decode(std::string_view text);
};

// Why the messages between nodes travel over MPI, for a person to read; empty if they travel over sockets:
// nothing needs MPI, each node is a host of its own, and each host has one network, so that MPI would not
// spread messages over several. `hosts` is indexed by rank.
std::string WhyMpi(const NodeMap& nodes, const std::vector<HostNetworks>& hosts);

}  // namespace weft::internal
