#include "src/train/planner/loopback_stream.h"

#include <unistd.h>

#include <arpa/inet.h>
#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>
#include <utility>

#include "src/train/files/file_io.h"
#include "weft/core/status.h"

namespace weft {
namespace {

absl::Status SystemError(const char* what) { return ErrnoStatus(errno, what, "127.0.0.1"); }

// Closes a socket unless it was taken.
struct Socket {
  explicit Socket(int socket) : fd(socket) {}
  ~Socket() {
    if (fd >= 0) close(fd);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int Take() { return std::exchange(fd, -1); }
  int fd;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LoopbackStream>> LoopbackStream::Create() {
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Socket sender(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.fd < 0 || sender.fd < 0) return SystemError("open a socket of");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.fd, any, length) != 0 || listen(listener.fd, 1) != 0 ||
      getsockname(listener.fd, any, &length) != 0 || connect(sender.fd, any, length) != 0) {
    return SystemError("connect to");
  }
  const int buffer = static_cast<int>(4 * kBytes);
  Socket receiver(accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC));
  if (receiver.fd < 0) return SystemError("accept a connection of");
  if (setsockopt(sender.fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)) != 0 ||
      setsockopt(receiver.fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)) != 0) {
    return SystemError("set the buffers of a socket of");
  }
  return std::unique_ptr<LoopbackStream>(new LoopbackStream(sender.Take(), receiver.Take()));
}

LoopbackStream::~LoopbackStream() {
  close(sender_);
  close(receiver_);
}

// Alternates, so that no amount of buffers makes it wait for itself.
bool LoopbackStream::Move() {
  size_t sent = 0;
  size_t received = 0;
  while (received < kBytes) {
    if (sent < kBytes) {
      const ssize_t count = send(sender_, bytes_.data() + sent, kBytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (count > 0) sent += static_cast<size_t>(count);
    }
    const ssize_t count = recv(receiver_, bytes_.data() + received, kBytes - received, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (count > 0) received += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace weft
