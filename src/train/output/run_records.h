// Records of a run's metrics: the file of --metrics with the configuration beside it, and --tensorboard.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/train/output/event_file.h"
#include "src/train/output/resolved_config.h"
#include "src/train/output/run_console.h"
#include "weft/train/config.h"
#include "weft/train/metrics.h"

namespace weft {

class RunRecords {
 public:
  struct Start {
    int64_t first_step = 1;   // The step at which the run starts or goes on.
    bool resumed = false;     // The run goes on after first_step - 1.
    std::string byte_inputs;  // StepMetrics::byte_inputs, for the line of the first step.
  };
  // Opens the files that `config` names. A resumed run keeps the lines of --metrics up to its checkpoint, and
  // appends to them. A run that --resume starts anew moves old lines to another file, and says so on
  // `console`. Errors: those of MetricsFile, EventFile and WriteWholeFile; each names the flag.
  static absl::StatusOr<RunRecords> Open(const TrainConfig& config, const std::vector<ResolvedItem>& resolved,
                                         Start start, RunConsole& console);

  // After an error, the file that it names gets no later steps. Others do.
  absl::Status Write(const StepMetrics& metrics);

 private:
  explicit RunRecords(Start start) : start_(std::move(start)) {}
  absl::Status OpenEvents(const std::string& folder);
  absl::Status OpenMetrics(const TrainConfig& config, const std::vector<ResolvedItem>& resolved,
                           RunConsole& console);

  Start start_;
  std::optional<MetricsFile> metrics_;  // If there is --metrics.
  std::optional<EventFile> events_;     // If there is --tensorboard.
};

}  // namespace weft
