#include "src/launch/output_relay.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <sys/stat.h>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/time/time.h>

namespace weft::internal {
namespace {

constexpr int kPollMs = 100;  // Until the thread looks whether it should stop waiting.
constexpr absl::Duration kFinishInterval = absl::Milliseconds(5);

bool IsPipe(int descriptor) {
  struct stat info {};
  return fstat(descriptor, &info) == 0 && S_ISFIFO(info.st_mode);
}

void CloseEnd(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

}  // namespace

OutputRelay::~OutputRelay() {
  gives_up_ = true;
  if (thread_.joinable()) thread_.join();
  for (Stream& stream : streams_) {
    CloseEnd(stream.source);
    CloseEnd(stream.write_end);
  }
}

absl::Status OutputRelay::Open() {
  streams_[0].target = STDOUT_FILENO;
  streams_[1].target = STDERR_FILENO;
  for (Stream& stream : streams_) {
    if (!IsPipe(stream.target)) continue;
    std::array<int, 2> ends = {};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      return absl::InternalError(absl::StrCat("cannot make a pipe for mpirun: ", std::strerror(errno)));
    }
    stream.source = ends[0];
    stream.write_end = ends[1];
  }
  return absl::OkStatus();
}

void OutputRelay::Start() {
  for (Stream& stream : streams_) CloseEnd(stream.write_end);
  thread_ = std::thread([this] { Run(); });
}

void OutputRelay::Finish(const SignalQueue& signals, bool waits) {
  gives_up_ = !waits;
  while (!is_done_) {
    const std::optional<int> signal = signals.Next(kFinishInterval);
    if (signal && *signal != SIGCHLD && *signal != SIGPIPE) gives_up_ = true;
  }
  thread_.join();
}

void OutputRelay::Read(Stream& stream) {
  const ssize_t bytes = read(stream.source, stream.part.data(), stream.part.size());
  if (bytes < 0 && errno == EINTR) return;
  if (bytes <= 0) return CloseEnd(stream.source);
  stream.begin = 0;
  stream.end = stream.is_lost ? 0 : static_cast<size_t>(bytes);
}

void OutputRelay::Write(Stream& stream) {
  const ssize_t bytes = write(stream.target, stream.part.data() + stream.begin, stream.end - stream.begin);
  if (bytes >= 0) {
    stream.begin += static_cast<size_t>(bytes);
  } else if (errno != EINTR && errno != EAGAIN) {
    Lose(stream);
  }
}

void OutputRelay::Lose(Stream& stream) {
  stream.is_lost = true;
  stream.begin = stream.end = 0;
  if (stream.target != STDOUT_FILENO) return;
  lost_output_ = true;
  kill(getpid(), SIGPIPE);
}

void OutputRelay::Run() {
  const auto is_open = [](const Stream& stream) { return stream.source >= 0; };
  while (is_open(streams_[0]) || is_open(streams_[1])) {
    std::array<pollfd, 4> polled = {};
    for (size_t i = 0; i < streams_.size(); ++i) {
      const Stream& stream = streams_[i];
      const bool has_bytes = stream.begin < stream.end;
      polled[2 * i] = {has_bytes ? -1 : stream.source, POLLIN, 0};
      // Also without bytes: a lost reader shows as an error.
      polled[2 * i + 1] = {is_open(stream) && !stream.is_lost ? stream.target : -1,
                           static_cast<int16_t>(has_bytes ? POLLOUT : 0), 0};
    }
    const bool gives_up = gives_up_;
    if (poll(polled.data(), polled.size(), gives_up ? 0 : kPollMs) <= 0) {
      if (gives_up) break;
      continue;
    }
    for (size_t i = 0; i < streams_.size(); ++i) {
      if ((polled[2 * i + 1].revents & POLLERR) != 0) {
        Lose(streams_[i]);
      } else if ((polled[2 * i + 1].revents & POLLOUT) != 0) {
        Write(streams_[i]);
      }
      if ((polled[2 * i].revents & (POLLIN | POLLHUP)) != 0) Read(streams_[i]);
    }
  }
  is_done_ = true;
}

}  // namespace weft::internal
