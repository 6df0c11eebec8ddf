// Socket of a link, which an epoll instance may watch until the socket is closed.
//
// Note [Copies of sockets]
// Problem: a forked child holds copies of all sockets. A copy keeps a connection open, a port taken and the
//   events of epoll coming, after this process has closed its own or has died.
// Rule: a child closes its copies during the fork. Destructors do nothing in it: its descriptors of these
//   numbers are others by then, and the epoll instance is that of the parent. A child that is made in another
//   way keeps its copies, so the owner also takes a socket off the epoll instance and shuts it down before it
//   closes it. The kernel still sends the bytes that it has.
// Without it: peers do not notice the death of a rank while a worker of it lives. Events name connections
//   that do not exist any more, and peers go on to send to a link that is closed.
//
// Thread safety: one caller at a time for each socket. Any thread may fork.
// Lifetime: the epoll instance outlives the socket.
#pragma once

#include <cstdint>
#include <sys/types.h>
#include <utility>

namespace weft::internal {

class WatchedSocket {
 public:
  WatchedSocket() = default;
  // A socket for TCP that does not block, and a connection that `listener` has accepted. Not open: see errno.
  static WatchedSocket Open(int family);
  static WatchedSocket Accept(const WatchedSocket& listener);
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
  explicit WatchedSocket(int descriptor);
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
