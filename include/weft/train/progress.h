// Progress line of a run.
//
// Thread safety: free functions; a ProgressPrinter belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

#include "weft/train/metrics.h"

namespace weft {

// "step 12/100  loss 3.1234  norm 1.234  12.3k tokens/s  0.123 TFLOP/s  41 ms  comm 3 ms  210 MiB  ETA 0:12".
// With sparse attention, "indexer 0.1234" follows the norm. The caller estimates `seconds_left`. The line
// consists of fields that two spaces separate. If it is longer than `columns`, fields after the norm are left
// out, the least important ones first.
std::string ProgressLine(const StepMetrics& metrics, int64_t total_steps, double seconds_left,
                         size_t columns = std::numeric_limits<size_t>::max());

// "[####------]  step 12/100  …" for a terminal: the line, with a bar in front if `columns`, all of the
// terminal's but the last one, are 60 or more. A line that is still too long is cut at `columns`.
std::string TerminalLine(const StepMetrics& metrics, int64_t total_steps, double seconds_left,
                         size_t columns);

// "the loss is 2.5 and the gradient norm inf", followed with sparse attention by those of the indexers.
std::string LossesAndNorms(const StepMetrics& metrics);

// Writes progress lines to a stream. On a terminal each line overwrites the one before and fits its width. No
// line has colors.
//
// Lifetime: the stream must outlive the printer.
class ProgressPrinter {
 public:
  ProgressPrinter(std::FILE* stream, int64_t total_steps, bool terminal)
      : stream_(stream), total_steps_(total_steps), terminal_(terminal) {}
  ~ProgressPrinter();  // Calls EndLine.
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  // Prints the step's line. If the step was `skipped`, or an evaluation followed it, prints a line about that
  // as well, which stays on a terminal.
  void Print(const StepMetrics& metrics, bool skipped);
  // Prints the loss of an evaluation after a step, in a line that stays on a terminal.
  void PrintEvaluation(int64_t step, double loss);
  // Prints a line that stays on a terminal.
  void PrintLine(std::string_view text);
  // Ends the line if a terminal still shows it.
  void EndLine();

 private:
  size_t Columns() const;  // Width of the terminal, or 80, less one.
  std::FILE* stream_;
  int64_t total_steps_;
  bool terminal_;
  bool line_open_ = false;
  double smoothed_step_ms_ = 0;
};

}  // namespace weft
