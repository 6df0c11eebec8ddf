#include "src/launch/nonblocking_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>

#include <absl/strings/str_cat.h>

namespace weft::internal {
namespace {

constexpr int kPrintLimitMs = 1000;

}  // namespace

NonblockingOutput::~NonblockingOutput() {
  for (const int descriptor : {target_, own_pipe_[0], own_pipe_[1]}) {
    if (descriptor >= 0) close(descriptor);
  }
}

absl::Status NonblockingOutput::Open(int original) {
  struct stat info {};
  if (fstat(original, &info) != 0 || (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode)))
    return absl::OkStatus();
  target_ = fcntl(original, F_DUPFD_CLOEXEC, 0);
  if (target_ < 0 || (S_ISFIFO(info.st_mode) && pipe2(own_pipe_.data(), O_CLOEXEC) != 0)) {
    return absl::InternalError(absl::StrCat("cannot make a pipe for the output: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

ssize_t NonblockingOutput::Write(const char* data, size_t size) {
  size = std::min(size, kMaxWrite);
  const auto [read_end, write_end] = own_pipe_;
  if (read_end < 0) return send(target_, data, size, MSG_DONTWAIT);
  if (write(write_end, data, size) != static_cast<ssize_t>(size)) return -1;
  const ssize_t moved = splice(read_end, nullptr, target_, nullptr, size, SPLICE_F_NONBLOCK);
  const int error = errno;
  if (const size_t left = size - static_cast<size_t>(std::max<ssize_t>(moved, 0)); left > 0) {
    std::array<char, kMaxWrite> dropped;
    (void)!read(read_end, dropped.data(), left);
  }
  errno = error;
  return moved;
}

void PrintMessage(const std::string& message) {
  const std::string line = absl::StrCat("weft launch: ", message, "\n");
  NonblockingOutput errors;
  if (!errors.Open(STDERR_FILENO).ok()) return;
  if (!errors.is_open()) {
    std::fputs(line.c_str(), stderr);
    return;
  }
  for (size_t begin = 0; begin < line.size();) {
    pollfd polled{errors.descriptor(), POLLOUT, 0};
    if (poll(&polled, 1, kPrintLimitMs) != 1) return;
    const ssize_t bytes = errors.Write(line.data() + begin, line.size() - begin);
    if (bytes < 0 && errno != EAGAIN) return;
    begin += static_cast<size_t>(std::max<ssize_t>(bytes, 0));
  }
}

}  // namespace weft::internal
