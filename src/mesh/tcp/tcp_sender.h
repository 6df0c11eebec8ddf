// Outgoing connection of a link to one peer, and the queue of its messages.
//
// A connection carries bytes in one direction. The peer has one of its own for the other direction. So no two
// ranks have to agree on who connects.
//
// Thread safety: one caller at a time.
// Lifetime: the destructor does not wait. Bytes that the kernel has still arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

#include "src/mesh/tcp/tcp_endpoint.h"
#include "src/mesh/tcp/tcp_frame.h"
#include "src/mesh/tcp/watched_socket.h"
#include "weft/mesh/runtime.h"

namespace weft::internal {

class TcpSender {
 public:
  // Identifies a data message in the results of Write and Drop; 0 for text, and for data that
  // Detach has copied.
  using MessageId = uint64_t;

  // Starts to connect to the link with this name, by the first of `routes` at which it answers. Does not
  // wait. `runtime`: its clock measures how long a name takes.
  // Lifetime: `runtime` must outlive the sender.
  void Connect(const TcpGreeting& greeting, const TcpName& name, std::vector<std::string> routes,
               uint16_t port, const Runtime& runtime);
  bool is_started() const { return started_; }
  // The socket to watch for `events`. OnEvent may change both, and so does EndLongAttempt if it returns true.
  WatchedSocket& socket() { return socket_; }
  uint32_t events() const;
  bool is_open() const { return socket_.is_open(); }
  bool is_connecting() const { return socket_.is_open() && state_ != State::kConnected; }
  // The route in use. REQUIRES: the socket is open.
  const std::string& route() const { return routes_[route_]; }
  // True from the moment that the peer has answered, also after the loss of the connection.
  bool has_connected() const { return has_connected_; }
  // The errno of the last attempt to open a socket; 0 if it was opened.
  int socket_error() const { return socket_error_; }

  // Appends a message. The data of the first must stay valid until it is sent; `text` is copied.
  void AppendData(MessageId id, int tag, const void* data, size_t bytes);
  void AppendText(TcpHeader::Kind kind, std::string_view text);
  // Removes a message, or copies what the kernel does not have of it: its data is not read any more.
  void Detach(MessageId id);
  // Removes the data messages of which nothing has been sent.
  void DropUnstartedData();

  // Sends as much as the kernel takes. Appends the ids of data messages that it has in full to `sent`.
  void Write(std::vector<MessageId>& sent);
  // After an event on the socket: goes on connecting, or notices the loss of the connection.
  void OnEvent();
  // Tries the next route if the peer has accepted a connection on this one and sent no name for half a
  // minute, and there is another. Returns true if it does. See Note [Wrong hosts].
  bool EndLongAttempt();

  bool has_unsent() const { return !queue_.empty(); }
  bool has_unsent_text() const { return unsent_texts_ > 0; }
  // Why the connection was lost, or could not be made. REQUIRES: it was not made, or is not open any more.
  const std::string& failure() const { return failure_; }
  // Ends the connection, drops its messages and returns the ids of those with data.
  std::vector<MessageId> Drop();

 private:
  struct Frame {
    MessageId id = 0;
    TcpHeader header;
    const char* data = nullptr;
    std::string text;  // Owns the bytes if `data` is null.
    size_t written = 0;
    bool is_greeting = false;  // Has no header.

    const char* body() const { return data != nullptr ? data : text.data(); }
    size_t header_bytes() const { return is_greeting ? 0 : sizeof(header); }
    size_t total_bytes() const { return header_bytes() + header.bytes; }
  };

  enum class State : uint8_t { kAwaitsConnection, kAwaitsName, kConnected };

  // Tries the route in use and those after it, until an attempt has begun.
  void TryRoutes();
  // Removes the route in use, which leads nowhere or to another program, for the reason.
  void DropRoute(std::string_view reason);
  void TryOtherRoutes(std::string_view reason);
  void ReadName();
  void Fail(int error);
  // Takes `bytes` that the kernel has accepted off the queue.
  void Advance(size_t bytes, std::vector<MessageId>& sent);

  WatchedSocket socket_;
  bool started_ = false;
  State state_ = State::kAwaitsConnection;
  bool has_connected_ = false;
  int socket_error_ = 0;
  TcpName expected_name_;
  TcpName name_;  // The bytes of it that have arrived.
  size_t name_bytes_ = 0;
  std::vector<std::string> routes_;  // Those that have not failed.
  size_t route_ = 0;                 // Index of the one in use.
  const Runtime* runtime_ = nullptr;
  std::optional<Deadline> name_deadline_;
  uint16_t port_ = 0;
  std::deque<Frame> queue_;
  int unsent_texts_ = 0;
  std::string failure_;
};

}  // namespace weft::internal
