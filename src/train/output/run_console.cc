#include "src/train/output/run_console.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "weft/core/status.h"

namespace weft {

RunConsole::RunConsole(std::FILE* stream, int64_t total_steps, bool terminal) : stream_(stream) {
  if (stream != nullptr) progress_.emplace(stream, total_steps, terminal);
}

void RunConsole::PrintConfiguration(std::vector<ResolvedItem> items, DType dtype) {
  if (!progress_) return;
  if (dtype != DType::kF32) items.push_back({"speed", MeasuredProductSpeed(dtype), ""});
  PrintItems(items);
}

void RunConsole::PrintItem(const ResolvedItem& item) { PrintItems({item}); }

void RunConsole::PrintItems(const std::vector<ResolvedItem>& items) {
  if (!progress_) return;
  std::fputs(ToText(items).c_str(), stream_);
  std::fflush(stream_);
}

void RunConsole::PrintLine(std::string_view text) {
  if (progress_) progress_->PrintLine(text);
}

void RunConsole::Warn(std::string_view message) { PrintLine(absl::StrCat("warning  ", ToAbsl(message))); }

void RunConsole::PrintStep(const StepMetrics& metrics, bool skipped) {
  if (progress_) progress_->Print(metrics, skipped);
}

void RunConsole::EndProgress() {
  if (progress_) progress_->EndLine();
}

void RunConsole::PrintEvaluation(int64_t step, double loss) {
  if (progress_) progress_->PrintEvaluation(step, loss);
}

void RunConsole::PrintSaved(const std::string& path) {
  if (!path.empty()) PrintLine(absl::StrCat("saved ", path));
}

void RunConsole::PrintTrace(const std::string& path, std::optional<StepRange> steps) {
  if (!steps) {
    Warn(absl::StrCat(path, " is not written: the run did none of the steps of --trace"));
    return;
  }
  PrintLine(absl::StrCat("trace of steps ", steps->first, " to ", steps->last, " in ", path));
}

void RunConsole::PrintWeightsHash(uint64_t hash) { PrintLine(absl::StrFormat("weights xxh64:%016x", hash)); }

void RunConsole::PrintExported(const std::string& folder) { PrintLine(absl::StrCat("exported to ", folder)); }

}  // namespace weft
