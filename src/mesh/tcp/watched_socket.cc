#include "src/mesh/tcp/watched_socket.h"

#include <unistd.h>

#include <sys/epoll.h>
#include <sys/socket.h>

namespace weft::internal {

WatchedSocket::WatchedSocket(int descriptor) : descriptor_(descriptor), process_(getpid()) {}

WatchedSocket::~WatchedSocket() {
  if (descriptor_ < 0) return;
  if (getpid() == process_) {
    if (epoll_ >= 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor_, nullptr);
    shutdown(descriptor_, SHUT_RDWR);
  }
  close(descriptor_);
}

bool WatchedSocket::Watch(int epoll, uint32_t events, uint64_t data) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = data;
  if (epoll_ctl(epoll, epoll_ < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, descriptor_, &event) != 0) return false;
  epoll_ = epoll;
  return true;
}

}  // namespace weft::internal
