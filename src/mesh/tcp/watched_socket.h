// Socket of a link, which an epoll instance may watch until the socket is closed.
//
// Note [Copies of sockets]
// Problem: a forked child holds copies of all sockets. A copy keeps a connection open, and the events of
//   epoll coming, after this process has closed its own.
// Rule: the destructor takes the socket off the epoll instance before it closes it. In a child process it
//   closes the child's copy only: the instance, too, is that of the parent.
// Without it: events name connections that do not exist any more.
//
// Thread safety: one caller at a time.
// Lifetime: the epoll instance outlives the socket.
#pragma once

#include <cstdint>
#include <sys/types.h>
#include <utility>

namespace weft::internal {

class WatchedSocket {
 public:
  WatchedSocket() = default;
  // Negative: no socket.
  explicit WatchedSocket(int descriptor);
  WatchedSocket(WatchedSocket&& other) noexcept { swap(other); }
  WatchedSocket& operator=(WatchedSocket&& other) noexcept {
    WatchedSocket(std::move(other)).swap(*this);
    return *this;
  }
  ~WatchedSocket();

  bool is_open() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }
  // Makes the epoll instance `epoll` report `events` with `data`, in place of those of an earlier call.
  // False: see errno. REQUIRES: is_open(), and the same instance in each call.
  bool Watch(int epoll, uint32_t events, uint64_t data);

 private:
  void swap(WatchedSocket& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(epoll_, other.epoll_);
    std::swap(process_, other.process_);
  }

  int descriptor_ = -1;
  int epoll_ = -1;  // Negative: not watched.
  pid_t process_ = 0;
};

}  // namespace weft::internal
