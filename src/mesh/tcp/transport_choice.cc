#include "src/mesh/tcp/transport_choice.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "weft/core/status.h"

namespace weft::internal {
namespace {

// Classes of devices that carry messages without TCP: InfiniBand, RoCE, EFA and Omni-Path; Slingshot.
constexpr std::string_view kFastDevices[] = {"infiniband", "cxi"};

// Variables that choose or set up the transport of Open MPI, of UCX and libfabric below it, of MPICH, and of
// Intel MPI. A name that ends in '*' stands for all that begin so.
constexpr std::string_view kTransportVariables[] = {"OMPI_MCA_btl",
                                                    "OMPI_MCA_btl_tcp_*",
                                                    "OMPI_MCA_pml*",
                                                    "OMPI_MCA_mtl*",
                                                    "UCX_*",
                                                    "FI_*",
                                                    "MPIR_CVAR_CH4_*",
                                                    "MPIR_CVAR_OFI_*",
                                                    "I_MPI_FABRICS",
                                                    "I_MPI_OFI_*",
                                                    "I_MPI_TCP_NETMASK*",
                                                    "MPICH_OFI_*"};

// The first device, such as "infiniband/mlx5_0"; empty if there is none.
std::string FastDevice(const std::filesystem::path& devices) {
  for (const std::string_view kind : kFastDevices) {
    std::error_code none;
    const std::filesystem::directory_iterator entries(devices / kind, none);
    if (entries != std::filesystem::directory_iterator())
      return absl::StrCat(ToAbsl(kind), "/", entries->path().filename().string());
  }
  return "";
}

bool ChoosesTransport(std::string_view variable) {
  return std::any_of(std::begin(kTransportVariables), std::end(kTransportVariables), [&](auto name) {
    return name.ends_with('*') ? variable.starts_with(name.substr(0, name.size() - 1)) : variable == name;
  });
}

// The name of the first variable that chooses MPI's transport; empty if there is none.
std::string TransportVariable() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view assignment = *entry;
    const std::string_view name = assignment.substr(0, assignment.find('='));
    if (ChoosesTransport(name)) return std::string(name);
  }
  return "";
}

// Hosts by their addresses; an address that several hosts have, as bridges of containers do, has none.
using HostOfAddress = absl::flat_hash_map<std::string, std::string>;

HostOfAddress FindHosts(const std::vector<HostNetworks>& hosts) {
  HostOfAddress host_of;
  for (const HostNetworks& host : hosts) {
    for (const TcpEndpoint::Interface& interface : host.endpoint.interfaces) {
      const auto [found, is_new] = host_of.try_emplace(interface.ip, host.endpoint.host);
      if (!is_new && found->second != host.endpoint.host) found->second.clear();
    }
  }
  return host_of;
}

// The network interfaces by which other hosts can tell this one.
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

absl::StatusOr<HostNetworks> HostNetworks::OfThisHost(const std::string& network,
                                                      const std::filesystem::path& devices) {
  HostNetworks networks;
  WEFT_ASSIGN_OR_RETURN(networks.endpoint, TcpEndpoint::OfThisHost(network));
  networks.device = FastDevice(devices);
  networks.variable = TransportVariable();
  return networks;
}

std::string HostNetworks::Encode() const {
  return absl::StrCat(endpoint.Encode(), "\n", device, "\n", variable);
}

absl::StatusOr<HostNetworks> HostNetworks::Decode(std::string_view text) {
  std::vector<std::string> lines = absl::StrSplit(ToAbsl(text), '\n');
  lines.resize(3);
  HostNetworks networks;
  WEFT_ASSIGN_OR_RETURN(networks.endpoint, TcpEndpoint::Decode(lines[0]));
  networks.device = std::move(lines[1]);
  networks.variable = std::move(lines[2]);
  return networks;
}

std::string WhyMpi(const NodeMap& nodes, const std::vector<HostNetworks>& hosts) {
  const HostOfAddress host_of = FindHosts(hosts);
  absl::flat_hash_map<std::string, int> first_rank;  // Of each host.
  for (int rank = 0; rank < nodes.size(); ++rank) {
    const HostNetworks& host = hosts[static_cast<size_t>(rank)];
    if (!host.device.empty()) return absl::StrCat("the host of rank ", rank, " has the device ", host.device);
    if (!host.variable.empty()) return absl::StrCat(host.variable, " is set on rank ", rank);
    const int first = first_rank.try_emplace(host.endpoint.host, rank).first->second;
    if (!nodes.SameNode(first, rank))
      return absl::StrCat("ranks ", first, " and ", rank, " are of two nodes on one host");
    const std::vector<std::string> networks = NetworksOf(host.endpoint, host_of);
    if (networks.empty()) return absl::StrCat("the host of rank ", rank, " has no network");
    if (networks.size() > 1) {
      return absl::StrCat("the host of rank ", rank, " has several networks (", absl::StrJoin(networks, ", "),
                          ")");
    }
  }
  return "";
}

}  // namespace weft::internal
