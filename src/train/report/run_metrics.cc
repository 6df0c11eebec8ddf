#include "src/train/report/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "src/train/files/json.h"
#include "src/train/files/json_text.h"
#include "src/train/output/outputs.h"
#include "src/train/report/json_lines.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr JsonLimits kConfigLimits = {.levels = 8, .values = 10'000, .token_bytes = kMaxConfigBytes};

// Appends `value` as that of the last step.
void Append(RunMetrics& run, const std::string& key, double value) {
  std::vector<double>& values = run.values[key];
  values.resize(run.steps.size() - 1, kNoValue);
  values.push_back(value);
}

absl::Status AddLine(const Json& line, RunMetrics& run) {
  const double step = NumberAt(line, "step", kNoValue);
  if (!(step >= 1) || (!run.steps.empty() && step <= run.steps.back())) {
    return absl::DataLossError("has no step that follows the one before: give the file of --metrics");
  }
  run.steps.push_back(step);
  for (const auto& [key, value] : line.items()) {
    if (key == "byte_inputs") {
      WEFT_ASSIGN_OR_RETURN(const ByteInputs inputs, ParseByteInputs(value));
      WEFT_ASSIGN_OR_RETURN(const ExpectedCosts costs, CostsOf(inputs));
      run.formulas.push_back({run.steps.size() - 1, inputs, costs});
      continue;
    }
    if (value.is_number()) Append(run, key, value.get<double>());
    if (!value.is_object()) continue;
    for (const auto& [inner, number] : value.items()) {
      if (number.is_number()) Append(run, absl::StrCat(key, ".", inner), number.get<double>());
    }
  }
  return absl::OkStatus();
}

// Runs with metrics on a device have no configuration beside them, and users may have moved it.
absl::Status ReadConfiguration(const std::string& path, RunMetrics& run) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(text.status());
  WEFT_RETURN_IF_ERROR(Annotate(CheckJsonText(*text, kConfigLimits), path));
  const auto items = ParseJson(*text);
  if (!items.is_object()) return absl::DataLossError(absl::StrCat("'", path, "' is not a JSON object"));
  for (const auto& [key, item] : items.items()) {
    run.configuration.emplace_back(key, item.is_object() ? TextAt(item, "value") : JsonText(item));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<double> RunMetrics::FiniteValues(const std::string& key) const {
  std::vector<double> finite;
  const auto found = values.find(key);
  if (found == values.end()) return finite;
  std::copy_if(found->second.begin(), found->second.end(), std::back_inserter(finite),
               [](double value) { return std::isfinite(value); });
  return finite;
}

absl::StatusOr<RunMetrics> ReadRunMetrics(const std::string& path) {
  RunMetrics run;
  run.name = path;
  WEFT_RETURN_IF_ERROR(ReadJsonLines(
      path, [](std::string_view) { return false; }, [&run](const Json& line) { return AddLine(line, run); }));
  if (run.steps.empty()) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' has no steps: give the file that weft train --metrics has written"));
  }
  for (auto& [key, values] : run.values) values.resize(run.steps.size(), kNoValue);
  if (const auto beside = ConfigPathBeside(path)) WEFT_RETURN_IF_ERROR(ReadConfiguration(*beside, run));
  return run;
}

}  // namespace weft
