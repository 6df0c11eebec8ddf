// Peers of a TcpLink whose bytes the owner reads and writes: one that connects to it, and one to which it
// connects.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <string>
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
  // Takes a connected socket.
  explicit RawTcpPeer(int socket) : socket_(socket) {}
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
  // Reads what has arrived. False once the link has closed the connection.
  bool IsOpen() {
    std::array<char, 256> part = {};
    while (is_open_) {
      const ssize_t got = recv(socket_, part.data(), part.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      is_open_ = got > 0;
      if (got > 0) received_.append(part.data(), static_cast<size_t>(got));
    }
    return is_open_;
  }
  // All that IsOpen has read.
  const std::string& received() const { return received_; }
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
  bool is_open_ = true;
  std::string received_;
};

// A program that listens at an address of this host, which may be another one than weft.
class RawTcpListener {
 public:
  // Any free port if `port` is 0.
  explicit RawTcpListener(const std::string& ip, uint16_t port = 0)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    auto address = internal::MakeSocketAddress(ip, port);
    socklen_t bytes = sizeof(address->storage);
    auto* const place = reinterpret_cast<sockaddr*>(&address->storage);
    WEFT_CHECK(bind(socket_, place, address->bytes) == 0 && listen(socket_, 8) == 0 &&
                   getsockname(socket_, place, &bytes) == 0,
               "cannot listen");
    port_ = ntohs(reinterpret_cast<const sockaddr_in&>(address->storage).sin_port);
  }
  ~RawTcpListener() { close(socket_); }
  RawTcpListener(const RawTcpListener&) = delete;
  RawTcpListener& operator=(const RawTcpListener&) = delete;

  uint16_t port() const { return port_; }
  // The next connection; null if there is none.
  std::unique_ptr<RawTcpPeer> Accept() const {
    const int connection = accept(socket_, nullptr, nullptr);
    return connection < 0 ? nullptr : std::make_unique<RawTcpPeer>(connection);
  }

 private:
  int socket_;
  uint16_t port_ = 0;
};

}  // namespace weft::testing
