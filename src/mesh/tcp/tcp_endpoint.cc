#include "src/mesh/tcp/tcp_endpoint.h"

#include <ifaddrs.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <optional>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "src/mesh/base/identities.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// The bytes of an IP address: 4 or 16; empty if `text` is none.
std::string BytesOf(const std::string& text) {
  std::array<char, sizeof(in6_addr)> bytes = {};
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) return {bytes.data(), sizeof(in_addr)};
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return {bytes.data(), sizeof(in6_addr)};
  return {};
}

int CountBits(std::string_view mask) {
  int bits = 0;
  for (const char byte : mask) bits += __builtin_popcount(static_cast<unsigned char>(byte));
  return bits;
}

std::string_view RawAddress(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto& ip = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return {reinterpret_cast<const char*>(&ip), sizeof(ip)};
  }
  const auto& ip = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return {reinterpret_cast<const char*>(&ip), sizeof(ip)};
}

bool IsUsable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || entry.ifa_netmask == nullptr || (entry.ifa_flags & IFF_UP) == 0)
    return false;
  const int family = entry.ifa_addr->sa_family;
  if (family == AF_INET) return true;
  // An address of one link alone needs the number of the interface, which differs between hosts.
  return family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
}

absl::StatusOr<std::vector<TcpEndpoint::Interface>> AllInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return absl::InternalError(absl::StrCat("cannot list the network interfaces: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<TcpEndpoint::Interface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!IsUsable(*entry)) continue;
    std::array<char, INET6_ADDRSTRLEN> text = {};
    inet_ntop(entry->ifa_addr->sa_family, RawAddress(entry->ifa_addr).data(), text.data(), text.size());
    // The name of an address may end in a label, as in eth0:1.
    const std::string_view name = entry->ifa_name;
    interfaces.push_back({std::string(name.substr(0, name.find(':'))), text.data(),
                          CountBits(RawAddress(entry->ifa_netmask)), (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return interfaces;
}

bool IsLoopback(const TcpEndpoint::Interface& interface) {
  return interface.ip == "::1" || interface.ip.starts_with("127.");
}

bool ShareNetwork(const TcpEndpoint::Interface& a, const TcpEndpoint::Interface& b) {
  const std::string first = BytesOf(a.ip);
  const std::string second = BytesOf(b.ip);
  if (first.size() != second.size() || a.prefix_bits != b.prefix_bits) return false;
  for (int bit = 0; bit < a.prefix_bits; ++bit) {
    const auto byte = static_cast<size_t>(bit / 8);
    if (((first[byte] ^ second[byte]) >> (7 - bit % 8) & 1) != 0) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<TcpEndpoint> TcpEndpoint::OfThisHost(const std::string& network) {
  TcpEndpoint endpoint{RandomToken(), absl::StrCat(BootId(), "/", NamespaceId("net")), 0, {}};
  WEFT_ASSIGN_OR_RETURN(const std::vector<Interface> all, AllInterfaces());
  if (network.empty()) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(endpoint.interfaces),
                 [](const Interface& interface) { return !IsLoopback(interface); });
    return endpoint;
  }
  const std::vector<std::string> names = absl::StrSplit(network, absl::ByAnyChar(", "), absl::SkipEmpty());
  for (const std::string& name : names) {
    const size_t before = endpoint.interfaces.size();
    std::copy_if(all.begin(), all.end(), std::back_inserter(endpoint.interfaces),
                 [&](const Interface& interface) { return interface.name == name; });
    if (endpoint.interfaces.size() > before) continue;
    const auto format = [](std::string* out, const Interface& interface) {
      absl::StrAppend(out, interface.name, " (", interface.ip, ")");
    };
    return absl::InvalidArgumentError(
        absl::StrCat("this host has no network interface '", name,
                     "' with an address, as WEFT_NETWORK or the option network asks: it has ",
                     absl::StrJoin(all, ", ", format)));
  }
  return endpoint;
}

uint64_t TcpEndpoint::PublicName() const { return Hash64(token.data(), token.size()); }

std::string TcpEndpoint::Encode() const {
  std::string text = absl::StrCat(token, " ", host, " ", port);
  for (const Interface& interface : interfaces) {
    // The name comes last, because it may have commas.
    absl::StrAppend(&text, " ", interface.ip, ",", interface.prefix_bits, ",", interface.name);
  }
  return text;
}

absl::StatusOr<TcpEndpoint> TcpEndpoint::Decode(std::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(ToAbsl(text), ' ');
  TcpEndpoint endpoint;
  int port = 0;
  bool valid = words.size() >= 3 && absl::SimpleAtoi(words[2], &port);
  for (size_t i = 3; valid && i < words.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(words[i], absl::MaxSplits(',', 2));
    int bits = 0;
    valid = parts.size() == 3 && absl::SimpleAtoi(parts[1], &bits);
    if (valid) endpoint.interfaces.push_back({parts[2], parts[0], bits});
  }
  if (!valid) {
    return absl::InternalError(
        absl::StrCat("'", ToAbsl(text), "' is no address of a link", kSameVersionRemedy));
  }
  endpoint.token = words[0];
  endpoint.host = words[1];
  endpoint.port = static_cast<uint16_t>(port);
  return endpoint;
}

void FindSharedAddresses(std::vector<TcpEndpoint>& endpoints) {
  absl::flat_hash_map<std::string, absl::flat_hash_set<std::string>> hosts_of;  // By address.
  for (const TcpEndpoint& endpoint : endpoints) {
    for (const TcpEndpoint::Interface& interface : endpoint.interfaces)
      hosts_of[interface.ip].insert(endpoint.host);
  }
  for (TcpEndpoint& endpoint : endpoints) {
    for (TcpEndpoint::Interface& interface : endpoint.interfaces)
      interface.is_of_several_hosts = hosts_of.at(interface.ip).size() > 1;
  }
}

std::vector<std::string> RoutesTo(const TcpEndpoint& own, const TcpEndpoint& peer) {
  std::vector<std::string> routes;
  const bool same_host = own.host == peer.host;
  if (same_host) routes.emplace_back(kLoopback);
  const auto is_own = [&](const TcpEndpoint::Interface& interface) {
    return std::any_of(own.interfaces.begin(), own.interfaces.end(),
                       [&](const auto& mine) { return mine.ip == interface.ip; });
  };
  const auto shares_network = [&](const TcpEndpoint::Interface& interface) {
    return std::any_of(own.interfaces.begin(), own.interfaces.end(),
                       [&](const auto& mine) { return ShareNetwork(mine, interface); });
  };
  for (const bool of_several_hosts : {false, true}) {
    for (const bool shared_network : {true, false}) {
      for (const TcpEndpoint::Interface& interface : peer.interfaces) {
        if (interface.is_of_several_hosts == of_several_hosts &&
            shares_network(interface) == shared_network && (same_host || !is_own(interface)))
          routes.push_back(interface.ip);
      }
    }
  }
  return routes;
}

absl::StatusOr<SocketAddress> MakeSocketAddress(const std::string& ip, uint16_t port) {
  SocketAddress address;
  auto* four = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, ip.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    address.bytes = sizeof(*four);
    return address;
  }
  if (inet_pton(AF_INET6, ip.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    address.bytes = sizeof(*six);
    return address;
  }
  return absl::InternalError(absl::StrCat("'", ip, "' is no IP address"));
}

}  // namespace weft::internal
