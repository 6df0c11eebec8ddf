// Console of a run, on which rank 0 prints the configuration, progress and the results.
//
// Thread safety: none; one thread uses a console.
// Lifetime: the stream must outlive it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/train/output/resolved_config.h"
#include "weft/core/dtype.h"
#include "weft/train/config.h"
#include "weft/train/metrics.h"
#include "weft/train/progress.h"

namespace weft {

class RunConsole {
 public:
  // `stream`: null on the other ranks, and for a run without output: prints nothing. `total_steps` and
  // `terminal`: see ProgressPrinter.
  RunConsole(std::FILE* stream, int64_t total_steps, bool terminal);

  // True if a write has failed, as on a full disk.
  bool has_failed() const { return stream_ != nullptr && std::ferror(stream_) != 0; }

  // Prints `items`, and the speed of products in `dtype`, unless it is f32. Multiplies to measure it.
  void PrintConfiguration(std::vector<ResolvedItem> items, DType dtype);
  void PrintItem(const ResolvedItem& item);
  void PrintLine(std::string_view text);
  void Warn(std::string_view message);

  // Prints the step's line: see ProgressPrinter::Print.
  void PrintStep(const StepMetrics& metrics, bool skipped);
  // Ends the line of the last step if a terminal still shows it. Other messages end it, too.
  void EndProgress();
  void PrintEvaluation(int64_t step, double loss);
  // `path`: of a checkpoint; empty: prints nothing.
  void PrintSaved(const std::string& path);
  // `steps`: those in the trace file `path`; unset if it is not written.
  void PrintTrace(const std::string& path, std::optional<StepRange> steps);
  void PrintWeightsHash(uint64_t hash);
  void PrintExported(const std::string& folder);

 private:
  void PrintItems(const std::vector<ResolvedItem>& items);

  std::FILE* stream_;
  std::optional<ProgressPrinter> progress_;  // Unset without a stream.
};

}  // namespace weft
