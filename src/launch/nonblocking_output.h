// Outputs of this process, for writes that do not wait for a reader.
//
// Note [Writes that do not wait]
// Problem: a write to a full pipe waits, unless the pipe has O_NONBLOCK. Other processes share that flag with
//   this one, and may have filled the pipe since poll has reported room. Only the user who has made the pipe
//   can open it anew, for a flag of its own, and a named one only while it has a reader.
// Rule: bytes for a pipe first go to a pipe of this process, from which splice moves them.
// Why it suffices: splice has a flag of its own, and needs no other descriptor than the original.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <sys/types.h>

#include <absl/status/status.h>

namespace weft::internal {

// A pipe or socket that is an output of this process.
//
// Thread safety: one thread uses it at a time.
class NonblockingOutput {
 public:
  // Write takes at most so many bytes at once.
  static constexpr size_t kMaxWrite = 4096;

  NonblockingOutput() = default;
  ~NonblockingOutput();
  NonblockingOutput(const NonblockingOutput&) = delete;
  NonblockingOutput& operator=(const NonblockingOutput&) = delete;

  // Does nothing if the descriptor is neither a pipe nor a socket. Errors: kInternal.
  absl::Status Open(int original);
  bool is_open() const { return target_ >= 0; }

  // For poll. POLLOUT: Write has room. POLLERR or POLLHUP: the reader is lost.
  int descriptor() const { return target_; }

  // Returns how many bytes the pipe or socket has taken. After an error it returns -1, and errno is EAGAIN if
  // there was no room. REQUIRES: is_open(), and SIGPIPE is ignored.
  ssize_t Write(const char* data, size_t size);

 private:
  int target_ = -1;
  std::array<int, 2> own_pipe_ = {-1, -1};  // Empty between calls. A socket has none.
};

// Prints a line for the user on standard error. Drops what its reader does not take within a second.
// REQUIRES: SIGPIPE is ignored.
void PrintMessage(const std::string& message);

}  // namespace weft::internal
