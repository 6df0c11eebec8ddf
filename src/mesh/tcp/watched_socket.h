// Socket of a link, which an epoll instance may watch until the socket is closed.
//
// Note [Copies of sockets]
// Problem: a forked child holds copies of all sockets. A copy keeps a connection open, a port taken and the
//   events of epoll coming, after this process has closed its own.
// Rule: the destructor takes the socket off the epoll instance and shuts it down before it closes it. The
//   kernel still sends the bytes that it has. In a child process the destructor closes the child's copy only:
//   the instance and the connection are those of the parent.
// Without it: events name connections that do not exist any more, and peers go on to send to a link that is
//   closed.
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
