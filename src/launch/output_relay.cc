#include "src/launch/output_relay.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <sys/stat.h>

#include <absl/strings/str_cat.h>
#include <absl/time/time.h>

#include "weft/core/status.h"
#include "weft/core/thread.h"

namespace weft::internal {
namespace {

constexpr int kPollMs = 100;  // Interval at which the thread looks at the flags.
constexpr absl::Duration kFinishInterval = absl::Milliseconds(5);

void CloseEnd(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

// True if the descriptors are of the same file, pipe or socket.
bool AreSame(int descriptor, int other) {
  struct stat info {};
  struct stat other_info {};
  return fstat(descriptor, &info) == 0 && fstat(other, &other_info) == 0 &&
         info.st_dev == other_info.st_dev && info.st_ino == other_info.st_ino;
}

}  // namespace

OutputRelay::~OutputRelay() {
  is_ending_ = gives_up_ = true;
  if (thread_.joinable()) thread_.join();
  for (Stream& stream : streams_) {
    CloseEnd(stream.source);
    CloseEnd(stream.write_end);
  }
}

absl::Status OutputRelay::Open() {
  streams_[0].original = STDOUT_FILENO;
  streams_[1].original = STDERR_FILENO;
  WEFT_RETURN_IF_ERROR(OpenStream(streams_[0]));
  has_one_reader_ = streams_[0].is_open() && AreSame(STDOUT_FILENO, STDERR_FILENO);
  if (!has_one_reader_) WEFT_RETURN_IF_ERROR(OpenStream(streams_[1]));
  WEFT_ASSIGN_OR_RETURN(thread_, StartThread("the output of mpirun", [this] { Run(); }));
  return absl::OkStatus();
}

absl::Status OutputRelay::OpenStream(Stream& stream) {
  WEFT_RETURN_IF_ERROR(stream.target.Open(stream.original));
  if (!stream.target.is_open()) return absl::OkStatus();  // mpirun writes to the original.
  std::array<int, 2> ends = {};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("cannot make a pipe for mpirun: ", std::strerror(errno)));
  }
  stream.source = ends[0];
  stream.write_end = ends[1];
  return absl::OkStatus();
}

void OutputRelay::CloseOutputs() {
  for (Stream& stream : streams_) CloseEnd(stream.write_end);
}

bool OutputRelay::WaitsForReader() const {
  if (holds_bytes_) return true;
  const auto* end = has_one_reader_ ? streams_.begin() + 1 : streams_.end();
  return std::any_of(streams_.begin(), end, [](const Stream& stream) {
    if (stream.target.is_open()) return false;
    pollfd polled{stream.original, POLLOUT, 0};  // A terminal, for example.
    return poll(&polled, 1, 0) == 0;
  });
}

void OutputRelay::Finish(const SignalQueue& signals, Requests& requests) {
  // A lost reader leaves the other one its bytes.
  gives_up_ = requests.end_at_once() && requests.user_stops();
  is_ending_ = true;
  while (!is_done_) {
    const std::optional<int> signal = signals.Next(kFinishInterval);
    if (!signal || *signal == SIGCHLD) continue;
    if (requests.Add(*signal)) gives_up_ = true;
  }
  thread_.join();
}

void OutputRelay::Read(Stream& stream) {
  const ssize_t bytes = read(stream.source, stream.part.data(), stream.part.size());
  if (bytes <= 0) return CloseEnd(stream.source);
  stream.begin = 0;
  stream.end = stream.is_lost ? 0 : static_cast<size_t>(bytes);
}

void OutputRelay::Write(Stream& stream) {
  const ssize_t bytes = stream.target.Write(stream.part.data() + stream.begin, stream.end - stream.begin);
  if (bytes >= 0) {
    stream.begin += static_cast<size_t>(bytes);
  } else if (errno != EAGAIN) {
    Lose(stream);
  }
}

void OutputRelay::Lose(Stream& stream) {
  stream.is_lost = true;
  stream.begin = stream.end = 0;
  if (stream.original != STDOUT_FILENO) return;
  lost_output_ = true;
  kill(getpid(), kLostReaderSignal);
}

// Signals are blocked in this thread, so no call is interrupted.
void OutputRelay::Run() {
  while (streams_[0].is_open() || streams_[1].is_open() || streams_[0].has_bytes() ||
         streams_[1].has_bytes()) {
    std::array<pollfd, 4> polled = {};
    bool has_bytes = false;
    for (size_t i = 0; i < streams_.size(); ++i) {
      const Stream& stream = streams_[i];
      has_bytes = has_bytes || stream.has_bytes();
      polled[2 * i] = {stream.has_bytes() ? -1 : stream.source, POLLIN, 0};
      // Also without bytes: poll reports a lost reader in any case.
      polled[2 * i + 1] = {stream.is_lost ? -1 : stream.target.descriptor(),
                           static_cast<int16_t>(stream.has_bytes() ? POLLOUT : 0), 0};
    }
    holds_bytes_ = has_bytes;
    const bool waits = !gives_up_ && (!is_ending_ || has_bytes);
    if (poll(polled.data(), polled.size(), waits ? kPollMs : 0) <= 0) {
      if (waits) continue;
      break;
    }
    for (size_t i = 0; i < streams_.size(); ++i) {
      const int16_t target = polled[2 * i + 1].revents;
      if ((target & (POLLERR | POLLHUP)) != 0) {
        Lose(streams_[i]);
      } else if ((target & POLLOUT) != 0) {
        Write(streams_[i]);
      }
      if ((polled[2 * i].revents & (POLLIN | POLLHUP)) != 0) Read(streams_[i]);
    }
  }
  holds_bytes_ = false;
  is_done_ = true;
}

}  // namespace weft::internal
