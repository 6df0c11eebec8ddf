#include "src/mesh/tcp/transport_choice.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <system_error>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "weft/core/status.h"

namespace weft::internal {
namespace {

// Devices that carry messages without TCP: those of InfiniBand, RoCE, EFA and Omni-Path; of Slingshot; and of
// Aries, whose class has other files, too.
struct DeviceClass {
  std::string_view folder;
  std::string_view prefix;
};
constexpr DeviceClass kFastDevices[] = {{"infiniband", ""}, {"cxi", ""}, {"gni", "kgni"}};

// Variables that choose a transport, a network or ports: of Open MPI; of UCX and libfabric below it; of
// MPICH; of Intel MPI. A name that ends in '*' stands for all that begin so.
constexpr std::string_view kTransportVariables[] = {
    "OMPI_MCA_btl",
    "OMPI_MCA_btl_tcp_*",  // But for kNetworkVariable.
    "OMPI_MCA_pml*",
    "OMPI_MCA_mtl*",
    "OMPI_MCA_opal_common_ofi_*",
    "OMPI_MCA_opal_common_ucx_*",
    "UCX_TLS",
    "UCX_NET_DEVICES",
    "UCX_TCP_*",
    "FI_PROVIDER",
    "FI_TCP_*",
    "FI_SOCKETS_*",
    "MPIR_CVAR_CH4_*",
    "MPIR_CVAR_OFI_*",
    "MPIR_CVAR_CH3_PORT_RANGE",
    "MPIR_CVAR_PORT*",
    "MPICH_CH3_PORT_RANGE",
    "MPICH_PORT*",
    "MPIR_PARAM_PORT*",
    "MPICH_OFI_*",
    "MPICH_GNI_*",
    "I_MPI_FABRICS",
    "I_MPI_OFI_*",
    "I_MPI_TCP_NETMASK*",
    "I_MPI_PORT_RANGE",
};

// Open MPI's choice of networks. Names of interfaces choose the network of the sockets as well.
constexpr std::string_view kNetworkVariable = "OMPI_MCA_btl_tcp_if_include";

// The first device, such as "infiniband/mlx5_0"; empty if there is none.
std::string FastDevice(const std::filesystem::path& devices) {
  for (const DeviceClass& kind : kFastDevices) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(devices / kind.folder, none)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(kind.prefix)) return absl::StrCat(ToAbsl(kind.folder), "/", name);
    }
  }
  return "";
}

bool IsTransportVariable(std::string_view variable) {
  return std::any_of(std::begin(kTransportVariables), std::end(kTransportVariables), [&](auto name) {
    return name.ends_with('*') ? variable.starts_with(name.substr(0, name.size() - 1)) : variable == name;
  });
}

// Names of the network interfaces that lead to other hosts.
std::vector<std::string> NetworksOf(const TcpEndpoint& endpoint) {
  std::vector<std::string> names;
  for (const TcpEndpoint::Interface& interface : endpoint.interfaces) {
    if (!interface.is_of_several_hosts) names.push_back(interface.name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

MpiSettings MpiSettings::Read(const char* const* environment) {
  MpiSettings settings;
  for (const char* const* entry = environment; *entry != nullptr; ++entry) {
    const std::string_view assignment = *entry;
    const size_t equals = std::min(assignment.find('='), assignment.size());
    const std::string_view name = assignment.substr(0, equals);
    if (name == kNetworkVariable)
      settings.network = assignment.substr(std::min(equals + 1, assignment.size()));
    else if (settings.variable.empty() && IsTransportVariable(name))
      settings.variable = name;
  }
  return settings;
}

absl::StatusOr<TransportFacts> TransportFacts::OfThisHost(const MpiSettings& settings,
                                                          const std::string& network,
                                                          const std::filesystem::path& devices) {
  if (const std::string device = FastDevice(devices); !device.empty())
    return TransportFacts{absl::StrCat("the device ", device), {}};
  if (!settings.variable.empty()) return TransportFacts{absl::StrCat("the variable ", settings.variable), {}};
  const std::string chosen = NetworkOfSockets(settings, network);
  absl::StatusOr<TcpEndpoint> endpoint = TcpEndpoint::OfThisHost(chosen);
  if (!endpoint.ok()) {
    if (absl::IsInvalidArgument(endpoint.status()) && !network.empty()) return endpoint.status();
    // MPI understands more than names of interfaces.
    return TransportFacts{chosen.empty() ? "network interfaces that cannot be listed"
                                         : absl::StrCat("the variable ", ToAbsl(kNetworkVariable)),
                          {}};
  }
  std::erase_if(endpoint->interfaces, [](const auto& interface) { return interface.is_loopback; });
  if (endpoint->interfaces.empty()) {
    return TransportFacts{chosen.empty()
                              ? "the lack of a network"
                              : absl::StrCat("the network '", chosen, "', which leads to no other host,"),
                          {}};
  }
  return TransportFacts{"", *std::move(endpoint)};
}

std::string TransportFacts::Encode() const {
  return reason_for_mpi.empty() ? absl::StrCat("\n", endpoint.Encode()) : reason_for_mpi;
}

absl::StatusOr<TransportFacts> TransportFacts::Decode(std::string_view text) {
  TransportFacts facts;
  const size_t line = text.find('\n');
  facts.reason_for_mpi = text.substr(0, line);
  if (line == std::string_view::npos) return facts;
  WEFT_ASSIGN_OR_RETURN(facts.endpoint, TcpEndpoint::Decode(text.substr(line + 1)));
  return facts;
}

std::string NetworkOfSockets(const MpiSettings& settings, const std::string& network) {
  return network.empty() ? settings.network : network;
}

std::string ReasonForMpi(const NodeMap& nodes, const std::vector<TransportFacts>& facts) {
  std::vector<TcpEndpoint> endpoints;
  endpoints.reserve(facts.size());
  for (const TransportFacts& rank : facts) endpoints.push_back(rank.endpoint);
  FindSharedAddresses(endpoints);
  absl::flat_hash_map<std::string, int> first_rank;  // Of each host.
  for (int rank = 0; rank < nodes.size(); ++rank) {
    const std::string& reason = facts[static_cast<size_t>(rank)].reason_for_mpi;
    const TcpEndpoint& endpoint = endpoints[static_cast<size_t>(rank)];
    const auto on_host = [rank](const std::string& what) {
      return absl::StrCat(what, " on the host of rank ", rank);
    };
    if (!reason.empty()) return on_host(reason);
    const int first = first_rank.try_emplace(endpoint.host, rank).first->second;
    if (!nodes.SameNode(first, rank)) return on_host("two nodes");
    const std::vector<std::string> networks = NetworksOf(endpoint);
    if (networks.empty()) return on_host("the lack of a network");
    if (networks.size() > 1)
      return on_host(absl::StrCat("several networks (", absl::StrJoin(networks, ", "), ")"));
  }
  return "";
}

}  // namespace weft::internal
