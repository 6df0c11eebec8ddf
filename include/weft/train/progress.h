// The line that tells people how a run goes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "weft/train/metrics.h"

namespace weft {

// "step 12/100  loss 3.1234  norm 1.234  8.1k tokens/s  0.123 TFLOP/s  41 ms  comm 3 ms  210 MiB  ETA 0:12".
// `seconds_left` as estimated by the caller.
std::string ProgressLine(const StepMetrics& metrics, int64_t total_steps, double seconds_left);

// Writes progress lines to a stream: over each other on a terminal, one below the other elsewhere.
//
// Lifetime: the stream must outlive it.
class ProgressPrinter {
 public:
  ProgressPrinter(std::FILE* stream, int64_t total_steps, bool terminal)
      : stream_(stream), total_steps_(total_steps), terminal_(terminal) {}
  // Ends the line that a terminal still shows.
  ~ProgressPrinter();
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  // The step's line; where an evaluation followed it, a line of that too, which stays on a terminal.
  void Print(const StepMetrics& metrics);

 private:
  void EndLine();
  std::FILE* stream_;
  int64_t total_steps_;
  bool terminal_;
  bool line_open_ = false;
  size_t shown_ = 0;  // Characters of the line that is on the terminal.
  double smoothed_step_ms_ = 0;
};

}  // namespace weft
