// Progress line of a run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "weft/train/metrics.h"

namespace weft {

// "step 12/100  loss 3.1234  norm 1.234  12.3k tokens/s  0.123 TFLOP/s  41 ms  comm 3 ms  210 MiB  ETA 0:04".
// The caller estimates `seconds_left`.
std::string ProgressLine(const StepMetrics& metrics, int64_t total_steps, double seconds_left);

// Writes progress lines to a stream. On a terminal each line overwrites the one before.
//
// Lifetime: the stream must outlive the printer.
class ProgressPrinter {
 public:
  ProgressPrinter(std::FILE* stream, int64_t total_steps, bool terminal)
      : stream_(stream), total_steps_(total_steps), terminal_(terminal) {}
  // Ends the line if a terminal still shows it.
  ~ProgressPrinter();
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  // Prints the step's line. If an evaluation followed the step, prints a second line, which stays on a
  // terminal.
  void Print(const StepMetrics& metrics);

 private:
  void EndLine();
  std::FILE* stream_;
  int64_t total_steps_;
  bool terminal_;
  bool line_open_ = false;
  size_t shown_ = 0;  // Length of the line on the terminal, in characters.
  double smoothed_step_ms_ = 0;
};

}  // namespace weft
