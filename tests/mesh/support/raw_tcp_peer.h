// A peer of a TcpLink whose bytes the owner writes.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <sys/socket.h>

#include "src/mesh/tcp/tcp_endpoint.h"
#include "src/mesh/tcp/tcp_frame.h"
#include "weft/core/status.h"

namespace weft::testing {

class RawTcpPeer {
 public:
  explicit RawTcpPeer(const internal::TcpEndpoint& endpoint) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const auto address = internal::MakeSocketAddress("127.0.0.1", endpoint.port);
    WEFT_CHECK(address.ok() && connect(socket_, reinterpret_cast<const sockaddr*>(&address->storage),
                                       address->bytes) == 0,
               "cannot connect to a link");
  }
  // Resets the connection: many of them would otherwise use up the ports of the host.
  ~RawTcpPeer() {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    close(socket_);
  }
  RawTcpPeer(const RawTcpPeer&) = delete;
  RawTcpPeer& operator=(const RawTcpPeer&) = delete;

  // The bytes that the link's buffers have room for. Returns their number; nothing if the connection has
  // ended.
  std::optional<size_t> Write(std::string_view bytes) const {
    const ssize_t written = send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (written < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return std::nullopt;
    return static_cast<size_t>(std::max<ssize_t>(0, written));
  }
  // False once the link has closed the connection.
  bool IsOpen() const {
    char byte = 0;
    const ssize_t got = recv(socket_, &byte, 1, MSG_DONTWAIT);
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  template <typename Frame>
  void WriteFrame(const Frame& frame) const {
    WEFT_CHECK(Write({reinterpret_cast<const char*>(&frame), sizeof(frame)}) == sizeof(frame),
               "cannot write a frame");
  }
  // The greeting of a rank of the job.
  static internal::TcpGreeting GreetingOf(const internal::TcpEndpoint& endpoint, int rank) {
    internal::TcpGreeting greeting;
    greeting.rank = rank;
    std::copy_n(endpoint.token.begin(), std::min(endpoint.token.size(), greeting.token.size()),
                greeting.token.begin());
    return greeting;
  }

 private:
  int socket_;
};

}  // namespace weft::testing
