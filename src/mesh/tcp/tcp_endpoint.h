// Place of a link on TCP: the addresses of its host's network interfaces and a port.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

#include <absl/status/statusor.h>

namespace weft::internal {

struct TcpEndpoint {
  struct Interface {
    std::string name;
    std::string ip;       // IPv4 or IPv6, in text.
    int prefix_bits = 0;  // Length of the network prefix of the address.
    // Not part of the text:
    bool is_loopback = false;          // Known for this host alone.
    bool is_of_several_hosts = false;  // By FindSharedAddresses.
  };

  std::string token;  // Random; a connection must present it.
  std::string host;  // Network namespace. Links with the same one reach each other by the loopback interface.
  uint16_t port = 0;
  std::vector<Interface> interfaces;  // Without the loopback interface.

  // An endpoint without a port. `network` limits its interfaces: see StoreBootstrapOptions::network.
  // Errors: kInvalidArgument (`network` names an interface that does not exist or has no address; gives those
  //   that exist), kInternal (the interfaces cannot be read).
  static absl::StatusOr<TcpEndpoint> OfThisHost(const std::string& network);

  // Tells links apart. It is no secret, and the token cannot be read from it.
  uint64_t PublicName() const;

  // Text without line feeds, and back.
  std::string Encode() const;
  // Errors: kInternal (not the text of an endpoint: a rank with another version of weft).
  static absl::StatusOr<TcpEndpoint> Decode(std::string_view text);
};

// Sets is_of_several_hosts of the addresses that several of the hosts have, as bridges of containers do.
void FindSharedAddresses(std::vector<TcpEndpoint>& endpoints);

// The addresses (IP, in text) at which `own` may reach `peer`, the best first: the loopback interface on the
// same host, then networks that both are part of, then all others, and addresses of several hosts last. An
// address of `own` is no route to another host.
std::vector<std::string> RoutesTo(const TcpEndpoint& own, const TcpEndpoint& peer);

// Socket address of an IP in text. `bytes` is the size of its part in use.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
};
// Errors: kInternal (not an IP address).
absl::StatusOr<SocketAddress> MakeSocketAddress(const std::string& ip, uint16_t port);

}  // namespace weft::internal
