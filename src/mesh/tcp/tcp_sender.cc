#include "src/mesh/tcp/tcp_sender.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/mesh/tcp/connection_options.h"

namespace weft::internal {

void TcpSender::Connect(const TcpGreeting& greeting, std::vector<std::string> routes, uint16_t port) {
  started_ = true;
  routes_ = std::move(routes);
  port_ = port;
  Frame first;
  first.is_greeting = true;
  first.header.bytes = sizeof(greeting);
  first.text.assign(reinterpret_cast<const char*>(&greeting), sizeof(greeting));
  queue_.push_front(std::move(first));
  if (routes_.empty()) failure_ = "the ranks have no network in common";
  TryNextRoute();
}

void TcpSender::TryNextRoute() {
  socket_ = WatchedSocket();
  while (next_route_ < routes_.size()) {
    const std::string& ip = routes_[next_route_++];
    const absl::StatusOr<SocketAddress> address = MakeSocketAddress(ip, port_);
    if (!address.ok()) continue;
    socket_ = WatchedSocket::Open(address->storage.ss_family);
    socket_error_ = socket_.is_open() ? 0 : errno;
    if (socket_.is_open()) {
      SetConnectionOptions(socket_.get());
      connected_ =
          connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address->storage), address->bytes) == 0;
      if (connected_ || errno == EINPROGRESS) {
        has_connected_ = connected_;
        failure_.clear();
        return;
      }
    }
    failure_ = absl::StrCat("cannot connect to ", ip, ": ", std::strerror(errno));
    socket_ = WatchedSocket();
  }
}

void TcpSender::OnEvent() {
  if (!socket_.is_open()) return;
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (connected_) {
    Fail(error);
  } else if (error == 0) {
    connected_ = has_connected_ = true;
  } else {
    const std::string reason =
        absl::StrCat("cannot connect to ", routes_[next_route_ - 1], ": ", std::strerror(error));
    TryNextRoute();
    if (!socket_.is_open()) failure_ = reason;
  }
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
  while (connected_ && socket_.is_open() && !queue_.empty()) {
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
