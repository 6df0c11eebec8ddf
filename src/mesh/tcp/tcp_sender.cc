#include "src/mesh/tcp/tcp_sender.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/mesh/tcp/connection_options.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// Time that a peer has to send its name, if there is another route. The kernel tries for about as long to
// make the connection.
constexpr absl::Duration kNameTimeout = absl::Seconds(30);

}  // namespace

void TcpSender::Connect(const TcpGreeting& greeting, const TcpName& name, std::vector<std::string> routes,
                        uint16_t port, const Runtime& runtime) {
  started_ = true;
  expected_name_ = name;
  routes_ = std::move(routes);
  port_ = port;
  runtime_ = &runtime;
  Frame first;
  first.is_greeting = true;
  first.header.bytes = sizeof(greeting);
  first.text.assign(reinterpret_cast<const char*>(&greeting), sizeof(greeting));
  queue_.push_front(std::move(first));
  if (routes_.empty()) failure_ = "the ranks have no network in common";
  TryRoutes();
}

void TcpSender::TryRoutes() {
  while (!routes_.empty()) {
    route_ %= routes_.size();
    socket_ = WatchedSocket();
    state_ = State::kAwaitsConnection;
    name_bytes_ = 0;
    const absl::StatusOr<SocketAddress> address = MakeSocketAddress(routes_[route_], port_);
    if (!address.ok()) {
      DropRoute("it is no address");
      continue;
    }
    socket_ = WatchedSocket::Open(address->storage.ss_family);
    socket_error_ = socket_.is_open() ? 0 : errno;
    if (socket_.is_open()) {
      SetConnectionOptions(socket_.get());
      const auto* const place = reinterpret_cast<const sockaddr*>(&address->storage);
      // A connection that is made at once becomes writable, like the others.
      if (connect(socket_.get(), place, address->bytes) == 0 || errno == EINPROGRESS) return;
    }
    DropRoute(std::strerror(errno));
  }
}

void TcpSender::DropRoute(std::string_view reason) {
  absl::StrAppend(&failure_, failure_.empty() ? "cannot connect to " : "; to ", routes_[route_], ": ",
                  ToAbsl(reason));
  routes_.erase(routes_.begin() + static_cast<std::ptrdiff_t>(route_));
  socket_ = WatchedSocket();
}

void TcpSender::TryOtherRoutes(std::string_view reason) {
  DropRoute(reason);
  TryRoutes();
}

bool TcpSender::EndLongAttempt() {
  if (!is_open() || state_ != State::kAwaitsName || routes_.size() < 2 || !name_deadline_->HasPassed())
    return false;
  ++route_;
  TryRoutes();
  return true;
}

uint32_t TcpSender::events() const {
  switch (state_) {
    case State::kAwaitsConnection:
      return EPOLLOUT;
    case State::kAwaitsName:
      return EPOLLIN;
    case State::kConnected:
      break;
  }
  return EPOLLRDHUP;
}

void TcpSender::OnEvent() {
  if (!socket_.is_open()) return;
  if (state_ == State::kAwaitsName) return ReadName();
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (state_ == State::kConnected) {
    Fail(error);
  } else if (error == 0) {
    state_ = State::kAwaitsName;
    name_deadline_.emplace(*runtime_, kNameTimeout);
    ReadName();
  } else {
    TryOtherRoutes(std::strerror(error));
  }
}

void TcpSender::ReadName() {
  while (name_bytes_ < sizeof(name_)) {
    const ssize_t got = recv(socket_.get(), reinterpret_cast<char*>(&name_) + name_bytes_,
                             sizeof(name_) - name_bytes_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return TryOtherRoutes(got < 0 ? std::strerror(errno) : "its end was closed");
    name_bytes_ += static_cast<size_t>(got);
  }
  if (name_ != expected_name_)
    return TryOtherRoutes("another program, or a rank of another job, answers there");
  state_ = State::kConnected;
  has_connected_ = true;
  failure_.clear();
}

void TcpSender::Fail(int error) {
  failure_ = error == 0 ? "its end was closed" : std::strerror(error);
  socket_ = WatchedSocket();
}

void TcpSender::AppendData(MessageId id, int tag, const void* data, size_t bytes) {
  Frame frame;
  frame.id = id;
  frame.header = {TcpHeader::Kind::kData, tag, bytes};
  frame.data = static_cast<const char*>(data);
  queue_.push_back(std::move(frame));
}

void TcpSender::AppendText(TcpHeader::Kind kind, std::string_view text) {
  Frame frame;
  frame.header = {kind, 0, text.size()};
  frame.text = text;
  queue_.push_back(std::move(frame));
  ++unsent_texts_;
}

void TcpSender::Detach(MessageId id) {
  const auto found =
      std::find_if(queue_.begin(), queue_.end(), [&](const Frame& frame) { return frame.id == id; });
  if (found == queue_.end()) return;
  if (found->written == 0) {
    queue_.erase(found);
    return;
  }
  if (found->data != nullptr) found->text.assign(found->data, found->header.bytes);
  found->data = nullptr;
  found->id = 0;
}

void TcpSender::DropUnstartedData() {
  std::erase_if(queue_, [](const Frame& frame) { return frame.id != 0 && frame.written == 0; });
}

void TcpSender::Write(std::vector<MessageId>& sent) {
  constexpr size_t kFrames = 8;
  while (state_ == State::kConnected && socket_.is_open() && !queue_.empty()) {
    std::array<iovec, 2 * kFrames> parts = {};
    size_t count = 0;
    size_t total = 0;
    for (size_t i = 0; i < std::min(queue_.size(), kFrames); ++i) {
      Frame& frame = queue_[i];
      const size_t in_header = std::min(frame.written, frame.header_bytes());
      const size_t in_body = frame.written - in_header;
      if (in_header < frame.header_bytes()) {
        parts[count++] = {reinterpret_cast<char*>(&frame.header) + in_header,
                          frame.header_bytes() - in_header};
      }
      // sendmsg only reads the bytes.
      if (in_body < frame.header.bytes) {
        parts[count++] = {const_cast<char*>(frame.body()) + in_body, frame.header.bytes - in_body};
      }
      total += frame.total_bytes() - frame.written;
    }
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t written = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (written < 0) {
      Fail(errno);
      return;
    }
    Advance(static_cast<size_t>(written), sent);
    if (static_cast<size_t>(written) < total) return;
  }
}

void TcpSender::Advance(size_t bytes, std::vector<MessageId>& sent) {
  while (!queue_.empty()) {
    Frame& frame = queue_.front();
    const size_t taken = std::min(bytes, frame.total_bytes() - frame.written);
    frame.written += taken;
    bytes -= taken;
    if (frame.written < frame.total_bytes()) return;
    if (frame.id != 0) sent.push_back(frame.id);
    if (frame.header.kind != TcpHeader::Kind::kData) --unsent_texts_;
    queue_.pop_front();
  }
}

std::vector<TcpSender::MessageId> TcpSender::Drop() {
  std::vector<MessageId> dropped;
  for (const Frame& frame : queue_) {
    if (frame.id != 0) dropped.push_back(frame.id);
  }
  queue_.clear();
  unsent_texts_ = 0;
  socket_ = WatchedSocket();
  return dropped;
}

}  // namespace weft::internal
