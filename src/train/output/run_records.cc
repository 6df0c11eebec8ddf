#include "src/train/output/run_records.h"

#include <absl/strings/str_cat.h>

#include "src/train/config/flag_error.h"
#include "src/train/files/file_io.h"
#include "src/train/output/outputs.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr const char* kMetrics = "metrics";
constexpr const char* kTensorboard = "tensorboard";

// The file may be that of a run without a checkpoint.
absl::Status MoveMetricsAside(const std::string& path, RunConsole& console) {
  WEFT_ASSIGN_OR_RETURN(const std::string aside, KeepOldMetrics(path));
  if (!aside.empty()) {
    console.PrintLine(absl::StrCat("metrics  the lines of an earlier run are now in ", aside));
  }
  return absl::OkStatus();
}

// The lines may be those of another run, if the user has named its file.
void AnnounceLaterLines(const MetricsFile& metrics, int64_t step, RunConsole& console) {
  if (metrics.later_lines().empty()) return;
  console.PrintLine(
      absl::StrCat("metrics  the lines of steps after ", step, " are now in ", metrics.later_lines()));
}

absl::Status WriteConfigBeside(const TrainConfig& config, const std::vector<ResolvedItem>& resolved) {
  const std::string& metrics_file = config.output.metrics_file;
  const auto beside = ConfigPathBeside(metrics_file);
  if (!beside) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(WriteWholeFile(*beside, ToJson(resolved)));
  return config.given_flags.empty() ? absl::OkStatus()
                                    : WriteWholeFile(*FlagsPathBeside(metrics_file), config.given_flags);
}

}  // namespace

absl::StatusOr<RunRecords> RunRecords::Open(const TrainConfig& config,
                                            const std::vector<ResolvedItem>& resolved, Start start,
                                            RunConsole& console) {
  RunRecords records(std::move(start));
  WEFT_RETURN_IF_ERROR(NameFlag(kTensorboard, records.OpenEvents(config.output.tensorboard_folder)));
  WEFT_RETURN_IF_ERROR(NameFlag(kMetrics, records.OpenMetrics(config, resolved, console)));
  return records;
}

absl::Status RunRecords::OpenEvents(const std::string& folder) {
  if (folder.empty()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(events_, EventFile::Create(folder));
  return absl::OkStatus();
}

absl::Status RunRecords::OpenMetrics(const TrainConfig& config, const std::vector<ResolvedItem>& resolved,
                                     RunConsole& console) {
  const std::string& path = config.output.metrics_file;
  if (path.empty()) return absl::OkStatus();
  if (start_.resumed) {
    WEFT_ASSIGN_OR_RETURN(metrics_, MetricsFile::Continue(path, start_.first_step - 1));
    AnnounceLaterLines(*metrics_, start_.first_step - 1, console);
  } else {
    if (!config.checkpoint.resume.empty()) WEFT_RETURN_IF_ERROR(MoveMetricsAside(path, console));
    WEFT_ASSIGN_OR_RETURN(metrics_, MetricsFile::Create(path));
  }
  return WriteConfigBeside(config, resolved);
}

absl::Status RunRecords::Write(const StepMetrics& metrics) {
  const auto missing = [&](const char* flag, const absl::Status& status) {
    return NameFlag(flag, absl::Status(status.code(), absl::StrCat(status.message(), "; steps from ",
                                                                   metrics.step, " on are missing there")));
  };
  absl::Status written;
  if (events_) {
    if (const absl::Status status = events_->Write(metrics); !status.ok()) {
      written = missing(kTensorboard, status);
      events_.reset();
    }
  }
  if (!metrics_) return written;
  StepMetrics line = metrics;
  if (metrics.step == start_.first_step) line.byte_inputs = start_.byte_inputs;
  if (const absl::Status status = metrics_->Write(line); !status.ok()) {
    written.Update(missing(kMetrics, status));
    metrics_.reset();
  }
  return written;
}

}  // namespace weft
