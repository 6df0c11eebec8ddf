#include "weft/train/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include "src/train/files/file_io.h"
#include "src/train/output/outputs.h"
#include "src/train/report/bar_chart.h"
#include "src/train/report/formula_tables.h"
#include "src/train/report/html_table.h"
#include "src/train/report/page_template.h"
#include "src/train/report/run_metrics.h"
#include "src/train/report/svg_chart.h"
#include "src/train/report/trace_summary.h"
#include "weft/core/median.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using Runs = std::vector<RunMetrics>;

std::vector<std::string> Heads(const char* first, const Runs& runs) {
  std::vector<std::string> heads = {first};
  for (const RunMetrics& run : runs) heads.push_back(Escaped(run.name));
  return heads;
}

// Summary.

std::string LastOf(const RunMetrics& run, const char* key) {
  const std::vector<double> values = run.FiniteValues(key);
  return values.empty() ? kNone : ShortNumber(values.back());
}

std::string MedianOf(const RunMetrics& run, const std::string& key, double unit = 1) {
  const std::vector<double> values = run.FiniteValues(key);
  return values.empty() ? kNone : ShortNumber(Median(values) / unit);
}

std::string LargestOf(const RunMetrics& run, const char* key, double unit) {
  const std::vector<double> values = run.FiniteValues(key);
  return values.empty() ? kNone : ShortNumber(*std::max_element(values.begin(), values.end()) / unit);
}

std::string ExposedShareOf(const RunMetrics& run) {
  const std::vector<double> exposed = run.FiniteValues("exposed_comm_ms");
  const std::vector<double> steps = run.FiniteValues("step_ms");
  if (exposed.empty() || steps.empty()) return kNone;
  return absl::StrFormat("%.1f %%", 100 * Median(exposed) / Median(steps));
}

Table SummaryOf(const Runs& runs) {
  Table table{.caption = "Times and bytes are those of rank 0; medians over the steps.",
              .head = Heads("quantity", runs)};
  const auto add = [&](const char* name, const auto& value_of) {
    std::vector<std::string> row = {name};
    for (const RunMetrics& run : runs) row.push_back(value_of(run));
    table.rows.push_back(std::move(row));
  };
  add("last step", [](const RunMetrics& run) { return absl::StrFormat("%.0f", run.steps.back()); });
  add("tokens seen", [](const RunMetrics& run) { return LastOf(run, "tokens_seen"); });
  add("last loss", [](const RunMetrics& run) { return LastOf(run, "loss"); });
  add("last evaluation loss", [](const RunMetrics& run) { return LastOf(run, "eval_loss"); });
  add("last gradient norm", [](const RunMetrics& run) { return LastOf(run, "grad_norm"); });
  add("skipped steps", [](const RunMetrics& run) { return LastOf(run, "skipped_steps"); });
  add("tokens per second", [](const RunMetrics& run) { return MedianOf(run, "tokens_per_s"); });
  add("TFLOP/s", [](const RunMetrics& run) { return MedianOf(run, "tflops"); });
  add("step, ms", [](const RunMetrics& run) { return MedianOf(run, "step_ms"); });
  add("exposed communication, share of the step", ExposedShareOf);
  add("largest resident memory, MiB",
      [](const RunMetrics& run) { return LargestOf(run, "rss_bytes", kMiB); });
  return table;
}

// Curves.

ChartLine LineOf(const RunMetrics& run, const char* key, double unit = 1) {
  ChartLine line;
  const auto found = run.values.find(key);
  if (found == run.values.end()) return line;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    line.points.push_back({run.steps[i], found->second[i] / unit});
  }
  return line;
}

// Evaluations follow few steps. The line leads from one to the next.
void KeepFinitePoints(ChartLine& line) {
  line.points.erase(std::remove_if(line.points.begin(), line.points.end(),
                                   [](const ChartPoint& point) { return !std::isfinite(point.y); }),
                    line.points.end());
}

struct Quantity {
  const char* key;
  const char* name;
  double unit = 1;
  bool is_sparse = false;  // Some steps only.
};

// One line for each run and quantity. The second quantity of a run is dashed.
std::string CurveOf(const Runs& runs, const char* title, const char* unit, bool is_log,
                    const std::vector<Quantity>& quantities) {
  Chart chart{.title = title, .unit = unit, .is_log = is_log, .lines = {}};
  for (size_t number = 0; number < runs.size(); ++number) {
    for (size_t i = 0; i < quantities.size(); ++i) {
      const Quantity& quantity = quantities[i];
      ChartLine line = LineOf(runs[number], quantity.key, quantity.unit);
      if (quantity.is_sparse) KeepFinitePoints(line);
      if (line.points.empty()) continue;
      line.color = static_cast<int>(runs.size() == 1 ? i : number);
      line.is_dashed = i > 0;
      line.has_dots = quantity.is_sparse;
      line.label = runs.size() == 1         ? quantity.name
                   : quantities.size() == 1 ? runs[number].name
                                            : absl::StrCat(runs[number].name, ", ", quantity.name);
      chart.lines.push_back(std::move(line));
    }
  }
  return FigureOf(chart);
}

std::string CurvesOf(const Runs& runs) {
  return absl::StrCat(
      "<div class=\"charts\">\n",
      CurveOf(runs, "Loss", "nats per token", false,
              {{"loss", "training"}, {.key = "eval_loss", .name = "evaluation", .is_sparse = true}}),
      CurveOf(runs, "Gradient norm", "before clipping", true, {{"grad_norm", "gradient norm"}}),
      CurveOf(runs, "Loss scale", "of f16", true, {{"loss_scale", "loss scale"}}),
      CurveOf(runs, "Learning rate", "", false, {{"lr", "learning rate"}}),
      CurveOf(runs, "Throughput", "tokens per second", false, {{"tokens_per_s", "throughput"}}),
      CurveOf(runs, "Time of a step", "ms", true,
              {{"step_ms", "step"}, {"exposed_comm_ms", "exposed communication"}}),
      CurveOf(
          runs, "Memory of rank 0", "MiB", false,
          {{"rss_bytes", "resident", kMiB}, {"peak_buffer_bytes", "gathered weights and gradients", kMiB}}),
      CurveOf(runs, "Indexers", "nats per token and layer", false, {{"indexer_loss", "indexer loss"}}),
      "</div>\n");
}

// Bytes and memory pools.

Table BytesOf(const Runs& runs) {
  Table table{.caption = "Median of a step of rank 0, in MiB. docs/training.md has the formulas.",
              .head = Heads("bytes", runs)};
  constexpr std::pair<const char*, const char*> kRows[] = {
      {"bytes.all_gather", "all-gathered: weights"},
      {"bytes.reduce_scatter", "reduce-scattered: gradients"},
      {"bytes.all_reduce", "all-reduced: gradients of replicas"},
      {"bytes.context", "attention over split sequences"},
      {"bytes.control", "norms, losses and requests"},
      {"bytes.optimizer", "matrices of Muon"},
      {"wire_bytes", "sent to other nodes"},
      {"wire_saved_bytes", "saved by compression"},
      {"cross_domain_bytes", "moved between share domains"},
      {"copied_bytes", "staged, cast or packed"},
      {"peak_bytes.images", "pool of gathered parameters"},
      {"peak_bytes.gradients", "pool of gradients"},
      {"peak_bytes.shards", "pool of shards"},
      {"peak_bytes.context", "pool of split sequences"},
      {"peak_bytes.scratch", "pool of the engine"},
      {"allocated_bytes", "taken from the system"},
  };
  for (const auto& [key, name] : kRows) {
    std::vector<std::string> row = {name};
    for (const RunMetrics& run : runs) row.push_back(MedianOf(run, key, kMiB));
    table.rows.push_back(std::move(row));
  }
  return table;
}

// Trace.

// Two bars for each group: what its computation takes with its waits, and its operations, which overlap with
// computation. The waits of all groups and their computation add up to the step, but for the optimizer.
std::string BarsOf(const TraceSummary& trace) {
  BarChart chart{.title = "Times of the groups",
                 .unit = "ms of a step",
                 .kinds = {"forward", "backward", "exposed", "gather", "reduce"},
                 .rows = {}};
  for (const GroupTimes& group : trace.groups) {
    chart.rows.push_back({group.group,
                          {{{0, group.forward_ms}, {1, group.backward_ms}, {2, group.exposed_ms}},
                           {{3, group.gather_ms}, {4, group.reduce_ms}}}});
  }
  return FigureOf(chart);
}

std::string TraceOf(const TraceSummary& trace) {
  Table table{.caption =
                  "Mean milliseconds of a step of a rank. Gathers and reductions overlap with "
                  "computation, except for the exposed time.",
              .head = {"group", "gather", "reduce", "forward", "backward", "exposed"}};
  for (const GroupTimes& row : trace.groups) {
    std::vector<std::string> cells = {Escaped(row.group)};
    for (const double time : {row.gather_ms, row.reduce_ms, row.forward_ms, row.backward_ms, row.exposed_ms})
      cells.push_back(absl::StrFormat("%.2f", time));
    table.rows.push_back(std::move(cells));
  }
  return absl::StrFormat(
      "<h2>Trace</h2>\n<p>%d ranks, steps %d to %d: %.2f ms a step, of which %.2f ms waited for "
      "communication.</p>\n%s%s",
      trace.ranks, trace.first_step, trace.last_step, trace.step_ms, trace.exposed_ms, BarsOf(trace),
      ToHtml(table));
}

// Configuration.

const std::string* ValueOf(const RunMetrics& run, const std::string& key) {
  for (const auto& [name, value] : run.configuration) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string ConfigurationOf(const Runs& runs) {
  Table table{.caption = runs.size() == 1 ? "The choices of the run."
                                          : "The choices of the runs. Rows that differ are marked with *.",
              .head = Heads("choice", runs),
              .is_text = true};
  std::vector<std::string> keys;
  for (const RunMetrics& run : runs) {
    for (const auto& [key, value] : run.configuration) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  if (keys.empty()) return "";
  for (const std::string& key : keys) {
    std::vector<std::string> row = {Escaped(key)};
    std::set<std::string> values;
    for (const RunMetrics& run : runs) {
      const std::string* value = ValueOf(run, key);
      row.push_back(value == nullptr ? kNone : Escaped(*value));
      values.insert(row.back());
    }
    if (values.size() > 1) {
      row[0] += " *";
      table.differing.insert(table.rows.size());
    }
    table.rows.push_back(std::move(row));
  }
  return absl::StrCat("<h2>Configuration</h2>\n", ToHtml(table));
}

// Values of the curves for readers that do not see them.

Table ValuesOf(const RunMetrics& run) {
  constexpr size_t kRows = 40;
  Table table{.caption = absl::StrCat(run.name, ": values of evenly spaced steps"),
              .head = {"step", "loss", "gradient norm", "tokens per second", "step, ms"}};
  const size_t count = std::min(kRows, run.steps.size());
  for (size_t i = 0; i < count; ++i) {
    const size_t at = count == 1 ? 0 : i * (run.steps.size() - 1) / (count - 1);
    std::vector<std::string> row = {absl::StrFormat("%.0f", run.steps[at])};
    for (const char* key : {"loss", "grad_norm", "tokens_per_s", "step_ms"}) {
      const auto found = run.values.find(key);
      const bool has_value = found != run.values.end() && std::isfinite(found->second[at]);
      row.push_back(has_value ? ShortNumber(found->second[at]) : kNone);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string PageOf(const Runs& runs, const std::optional<TraceSummary>& trace) {
  std::vector<std::string> names;
  for (const RunMetrics& run : runs) names.push_back(run.name);
  const std::string title = absl::StrCat("Training report: ", absl::StrJoin(names, ", "));
  std::string content =
      absl::StrCat("<h2>Summary</h2>\n", ToHtml(SummaryOf(runs)), "<h2>Curves</h2>\n", CurvesOf(runs),
                   "<h2>Bytes and memory</h2>\n", ToHtml(BytesOf(runs)), "<h2>Bytes against formulas</h2>\n");
  for (const RunMetrics& run : runs) absl::StrAppend(&content, FormulasOf(run));
  if (trace) absl::StrAppend(&content, TraceOf(*trace));
  absl::StrAppend(&content, ConfigurationOf(runs), "<details>\n<summary>Values</summary>\n");
  for (const RunMetrics& run : runs) absl::StrAppend(&content, ToHtml(ValuesOf(run)));
  content += "</details>\n";
  return absl::StrReplaceAll(ToAbsl(PageTemplate()),
                             {{"{{title}}", Escaped(title)}, {"{{content}}", content}});
}

absl::Status CheckOutput(const ReportOptions& options) {
  std::vector<std::string> inputs = options.runs;
  for (const std::string& run : options.runs) {
    if (auto configuration = ConfigPathBeside(run)) inputs.push_back(*std::move(configuration));
  }
  if (!options.trace.empty()) inputs.push_back(options.trace);
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!std::filesystem::equivalent(input, options.output, error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the page would replace '", input, "', which it reads: give -o another name"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteReport(const ReportOptions& options) {
  WEFT_RETURN_IF_ERROR(CheckOutput(options));
  Runs runs;
  for (const std::string& path : options.runs) {
    WEFT_ASSIGN_OR_RETURN(runs.emplace_back(), ReadRunMetrics(path));
  }
  std::optional<TraceSummary> trace;
  if (!options.trace.empty()) {
    WEFT_ASSIGN_OR_RETURN(trace, ReadTraceSummary(options.trace));
  }
  return Annotate(WriteWholeFile(options.output, PageOf(runs, trace)), "-o");
}

absl::StatusOr<std::string> SummarizeTrace(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const TraceSummary summary, ReadTraceSummary(path));
  return ToText(summary);
}

}  // namespace weft
