#include "src/mesh/tcp/watched_socket.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <vector>

namespace weft::internal {
namespace {

// The sockets of all links of this process.
class OpenSockets {
 public:
  static OpenSockets& OfThisProcess() {
    static auto* const sockets = new OpenSockets;
    return *sockets;
  }

  // Adds the socket that `open` returns. No fork comes between.
  template <typename Open>
  int Add(const Open& open) {
    const std::lock_guard lock(mutex_);
    const int descriptor = open();
    if (descriptor >= 0) descriptors_.push_back(descriptor);
    return descriptor;
  }
  void Close(int descriptor) {
    const std::lock_guard lock(mutex_);
    std::erase(descriptors_, descriptor);
    close(descriptor);
  }

 private:
  OpenSockets() {
    pthread_atfork([] { OfThisProcess().mutex_.lock(); }, [] { OfThisProcess().mutex_.unlock(); },
                   [] { OfThisProcess().CloseCopies(); });
  }
  // In a child process. It allocates and frees nothing: another thread may have held a lock of the allocator.
  void CloseCopies() {
    for (const int descriptor : descriptors_) close(descriptor);
    descriptors_.clear();  // The child may open others of these numbers, and fork, too.
    mutex_.unlock();
  }

  std::mutex mutex_;  // Held during a fork.
  std::vector<int> descriptors_;
};

}  // namespace

WatchedSocket WatchedSocket::Open(int family) {
  return WatchedSocket(OpenSockets::OfThisProcess().Add(
      [&] { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }));
}

WatchedSocket WatchedSocket::Accept(const WatchedSocket& listener) {
  return WatchedSocket(OpenSockets::OfThisProcess().Add(
      [&] { return accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); }));
}

WatchedSocket::WatchedSocket(int descriptor) : descriptor_(descriptor), process_(getpid()) {}

WatchedSocket::~WatchedSocket() {
  if (descriptor_ < 0 || getpid() != process_) return;
  if (epoll_ >= 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor_, nullptr);
  shutdown(descriptor_, SHUT_RDWR);
  OpenSockets::OfThisProcess().Close(descriptor_);
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
