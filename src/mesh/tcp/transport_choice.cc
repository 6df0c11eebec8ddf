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
    "OMPI_MCA_btl_tcp_*",
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
    "MPICH_PORT_RANGE",
    "MPICH_OFI_*",
    "MPICH_GNI_*",
    "I_MPI_FABRICS",
    "I_MPI_OFI_*",
    "I_MPI_TCP_NETMASK*",
    "I_MPI_PORT_RANGE",
};

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

// The host of each address; empty if several hosts have the address, as bridges of containers do.
using HostOfAddress = absl::flat_hash_map<std::string, std::string>;

HostOfAddress FindHosts(const std::vector<TransportFacts>& facts) {
  HostOfAddress host_of;
  for (const TransportFacts& rank : facts) {
    for (const TcpEndpoint::Interface& interface : rank.endpoint.interfaces) {
      const auto [found, is_new] = host_of.try_emplace(interface.ip, rank.endpoint.host);
      if (!is_new && found->second != rank.endpoint.host) found->second.clear();
    }
  }
  return host_of;
}

// The network interfaces that have an address of this host alone.
std::vector<std::string> NetworksOf(const TcpEndpoint& endpoint, const HostOfAddress& host_of) {
  std::vector<std::string> names;
  for (const TcpEndpoint::Interface& interface : endpoint.interfaces) {
    if (!host_of.at(interface.ip).empty()) names.push_back(interface.name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

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

absl::StatusOr<TransportFacts> ReadTransportFacts(std::string_view variable, const std::string& network,
                                                  const std::filesystem::path& devices) {
  if (const std::string device = FastDevice(devices); !device.empty())
    return TransportFacts{absl::StrCat("the device ", device), {}};
  if (!variable.empty()) return TransportFacts{absl::StrCat("the variable ", ToAbsl(variable)), {}};
  absl::StatusOr<TcpEndpoint> endpoint = TcpEndpoint::OfThisHost(network);
  if (endpoint.ok()) return TransportFacts{"", *std::move(endpoint)};
  if (absl::IsInvalidArgument(endpoint.status())) return endpoint.status();
  return TransportFacts{"network interfaces that cannot be listed", {}};
}

std::string TransportVariable(const char* const* environment) {
  for (const char* const* entry = environment; *entry != nullptr; ++entry) {
    const std::string_view assignment = *entry;
    const std::string_view name = assignment.substr(0, assignment.find('='));
    if (IsTransportVariable(name)) return std::string(name);
  }
  return "";
}

std::string ReasonForMpi(const NodeMap& nodes, const std::vector<TransportFacts>& facts) {
  const HostOfAddress host_of = FindHosts(facts);
  absl::flat_hash_map<std::string, int> first_rank;  // Of each host.
  for (int rank = 0; rank < nodes.size(); ++rank) {
    const auto& [reason, endpoint] = facts[static_cast<size_t>(rank)];
    const std::string place = absl::StrCat(" on the host of rank ", rank);
    if (!reason.empty()) return reason + place;
    const int first = first_rank.try_emplace(endpoint.host, rank).first->second;
    if (!nodes.SameNode(first, rank)) return "two nodes" + place;
    const std::vector<std::string> networks = NetworksOf(endpoint, host_of);
    if (networks.empty()) return "the lack of a network" + place;
    if (networks.size() > 1)
      return absl::StrCat("several networks (", absl::StrJoin(networks, ", "), ")", place);
  }
  return "";
}

}  // namespace weft::internal
