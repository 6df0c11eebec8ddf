// Passes on what mpirun prints, and notices that nobody reads it any more.
//
// Note [Lost readers]
// Problem: mpirun ends at the first line that it cannot write, because nobody reads its output any more. Its
//   ranks end with it, and the steps since their last checkpoint are lost.
// Rule: if the standard output or error of a launch is a pipe, mpirun gets another pipe instead. A thread
//   passes on what comes from it. Once the reader is lost, the thread drops it. If the reader of the standard
//   output is lost, SIGPIPE asks the launch to stop its ranks, which then save a checkpoint.
// Why it suffices: the thread reads until mpirun and all of its helpers have ended.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <thread>

#include <absl/status/statusor.h>

#include "src/launch/supervisor.h"

namespace weft::internal {

class OutputRelay {
 public:
  OutputRelay() = default;
  // Drops what its reader does not take at once.
  ~OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // Makes the pipes. Errors: kInternal.
  absl::Status Open();
  // The descriptors that mpirun gets as its standard output and error.
  std::array<int, 2> outputs() const { return {streams_[0].output(), streams_[1].output()}; }
  // Closes this process's copies of outputs(), and starts the thread. REQUIRES: mpirun has been started, and
  // SIGPIPE is blocked.
  void Start();
  // Passes on what is left. Waits for a slow reader until a signal to stop arrives, or not at all.
  // REQUIRES: no process has outputs().
  void Finish(const SignalQueue& signals, bool waits);
  // True if the reader of the standard output was lost.
  bool lost_output() const { return lost_output_; }

 private:
  static constexpr size_t kPart = 4096;  // A pipe that can be written has room for as much: PIPE_BUF.

  // From a pipe to a descriptor of this process.
  struct Stream {
    int target = -1;
    int source = -1;  // Read end. -1: mpirun writes to the target itself, or all has been passed on.
    int write_end = -1;
    std::array<char, kPart> part = {};
    size_t begin = 0, end = 0;  // Bytes of `part` that are to be written.
    bool is_lost = false;

    int output() const { return write_end < 0 ? target : write_end; }
  };

  static void Read(Stream& stream);
  void Write(Stream& stream);
  void Lose(Stream& stream);
  void Run();

  std::array<Stream, 2> streams_;
  std::atomic<bool> lost_output_ = false;
  std::atomic<bool> gives_up_ = false;
  std::atomic<bool> is_done_ = false;
  std::thread thread_;
};

}  // namespace weft::internal
