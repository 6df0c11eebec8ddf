// Passes on what mpirun prints, and notices that nobody reads it any more.
//
// Note [Lost readers]
// Problem: mpirun ends at the first line that it cannot write because nobody reads its output any more. Its
//   ranks end with it, and the steps since their last checkpoint are lost.
// Rule: if the standard output or error of a launch is a pipe or a socket, mpirun gets a pipe of the launch
//   instead. A thread passes on what comes from that pipe. Once a reader is lost, the thread drops what is
//   meant for it. If it was the reader of the standard output, kLostReaderSignal asks the launch to stop its
//   ranks, which then save a checkpoint.
// Why it suffices: the thread reads until mpirun and all of its helpers have ended. It never waits in a
//   write: see Note [Writes that do not wait] in src/launch/nonblocking_output.h.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <thread>

#include <absl/status/status.h>

#include "src/launch/nonblocking_output.h"
#include "src/launch/supervisor.h"

namespace weft::internal {

class OutputRelay {
 public:
  OutputRelay() = default;
  // Drops what the readers do not take at once.
  ~OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // Makes the pipes, and starts the thread: after the start of mpirun, an error would have to end mpirun.
  // Errors: kInternal, kResourceExhausted (no thread; names the limits). REQUIRES: SIGPIPE is ignored.
  absl::Status Open();
  // The descriptors that mpirun gets as its standard output and error.
  std::array<int, 2> outputs() const {
    return {streams_[0].output(), streams_[has_one_reader_ ? 0 : 1].output()};
  }
  // Closes this process's copies of outputs(). REQUIRES: mpirun has been started.
  void CloseOutputs();
  // Passes on what the pipes hold, and ends the thread. Waits for slow readers until the user stops it.
  // REQUIRES: mpirun and its helpers have ended.
  void Finish(const SignalQueue& signals, Requests& requests);
  // True while a reader has not taken what mpirun has printed. mpirun does not end before.
  bool WaitsForReader() const;
  // True if the reader of the standard output was lost.
  bool lost_output() const { return lost_output_; }

 private:
  // From mpirun to a reader.
  struct Stream {
    int original = -1;   // Descriptor of this process that has the reader.
    int source = -1;     // Read end of mpirun's pipe. -1: there is none, or it has ended.
    int write_end = -1;  // Of the same pipe.
    NonblockingOutput target;
    bool is_lost = false;
    std::array<char, NonblockingOutput::kMaxWrite> part = {};
    size_t begin = 0, end = 0;  // Bytes of `part` that are to be written.

    int output() const { return write_end < 0 ? original : write_end; }
    bool is_open() const { return source >= 0; }
    bool has_bytes() const { return begin < end; }
  };

  static absl::Status OpenStream(Stream& stream);
  static void Read(Stream& stream);
  void Write(Stream& stream);
  void Lose(Stream& stream);
  void Run();

  // The standard output and error. The first is that of both if they have the same reader, which then gets
  // their bytes in order.
  std::array<Stream, 2> streams_;
  bool has_one_reader_ = false;
  std::atomic<bool> holds_bytes_ = false;  // For a reader, in either stream.
  std::atomic<bool> lost_output_ = false;
  std::atomic<bool> is_ending_ = false;  // Nothing comes but what the pipes hold.
  std::atomic<bool> gives_up_ = false;   // Readers must take bytes at once.
  std::atomic<bool> is_done_ = false;
  std::thread thread_;
};

}  // namespace weft::internal
