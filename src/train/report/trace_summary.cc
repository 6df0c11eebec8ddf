#include "src/train/report/trace_summary.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "src/train/files/json.h"
#include "src/train/report/json_lines.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr const char* kRoot = "root";

enum class Kind : uint8_t { kStep, kForward, kBackward, kUpdate, kProduct, kWait, kGather, kReduce, kOther };

struct Span {
  double begin_us = 0, end_us = 0;
  Kind kind = Kind::kOther;
  std::string name;         // Of a module, or the label of an operation.
  std::string lane;         // Of an operation or a wait.
  bool is_barrier = false;  // An operation or a wait for one.

  double ms() const { return (end_us - begin_us) / 1e3; }
};

struct Events {
  std::map<std::pair<int64_t, int64_t>, std::string> tracks;  // By process and thread.
  std::map<int64_t, std::vector<Span>> spans;                 // By rank.
};

Kind KindOfOperation(std::string_view name) {
  if (name.starts_with("all_gather")) return Kind::kGather;
  const bool reduces = name.starts_with("reduce_scatter") || name.starts_with("all_reduce");
  return reduces ? Kind::kReduce : Kind::kOther;
}

// "wait for all_gather 'root' on shard/all_gather".
void ReadWait(std::string_view name, Span& span) {
  span.kind = Kind::kWait;
  span.is_barrier = name.starts_with("wait for barrier");
  const size_t lane = name.rfind(" on ");
  if (lane != std::string_view::npos) span.lane = name.substr(lane + 4);
  const size_t first = name.find('\'');
  const size_t last = name.rfind('\'', lane);
  if (first != std::string_view::npos && last > first) span.name = name.substr(first + 1, last - first - 1);
}

// False for an event that the summary does not need.
bool ReadSpan(const std::string& category, const std::string& name, const std::string& track, Span& span) {
  if (category == "step") {
    span.kind = Kind::kStep;
    span.name = name;
  } else if (category == "forward" || category == "backward") {
    span.kind = category == "forward" ? Kind::kForward : Kind::kBackward;
    span.name = name;
  } else if (category == "optimizer") {
    span.kind = Kind::kUpdate;
    span.name = name;
  } else if (category == "product") {
    span.kind = Kind::kProduct;
  } else if (category == "wait") {
    ReadWait(name, span);
  } else if (category == "operation") {
    span.kind = KindOfOperation(name);
    span.is_barrier = name.starts_with("barrier");
    const size_t label = name.find(' ');
    if (label != std::string::npos) span.name = name.substr(label + 1);
    span.lane = track.substr(0, track.find(" ("));  // Further tracks of a lane have a number.
  } else {
    return false;
  }
  return true;
}

absl::StatusOr<Events> ReadEvents(const std::string& path) {
  Events events;
  bool has_begun = false, has_ended = false;
  const auto skip = [&](std::string_view line) {
    if (!has_begun) return has_begun = line.find("\"traceEvents\"") != std::string_view::npos;
    return has_ended = line == "]}";
  };
  WEFT_RETURN_IF_ERROR(ReadJsonLines(path, skip, [&](const Json& event) {
    const auto process = static_cast<int64_t>(NumberAt(event, "pid", -1));
    const auto thread = static_cast<int64_t>(NumberAt(event, "tid", -1));
    const std::string name = TextAt(event, "name");
    if (name == "thread_name" && event.contains("args")) {
      events.tracks[{process, thread}] = TextAt(event["args"], "name");
    }
    Span span;
    span.begin_us = NumberAt(event, "ts", 0);
    span.end_us = span.begin_us + NumberAt(event, "dur", 0);
    if (ReadSpan(TextAt(event, "cat"), name, events.tracks[{process, thread}], span)) {
      events.spans[process].push_back(std::move(span));
    }
    return absl::OkStatus();
  }));
  if (events.spans.empty()) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' has no steps: give the file that weft train --trace has written"));
  }
  if (!has_ended) {
    return absl::DataLossError(absl::StrCat("'", path, "' is truncated: its last line is not ']}'"));
  }
  return events;
}

// Outer spans before those that they contain. Of two with the same times, the one that the file has later is
// the outer one.
void SortByNesting(std::vector<Span>& spans) {
  std::reverse(spans.begin(), spans.end());
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.begin_us, b.end_us) < std::tie(b.begin_us, a.end_us);
  });
}

// The row whose `name` is the given one. Appended if there is none.
template <typename Row>
Row& RowOf(std::vector<Row>& rows, std::string Row::*name, const std::string& value) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.*name == value; });
  if (found != rows.end()) return *found;
  rows.emplace_back().*name = value;
  return rows.back();
}

// The lanes on which the parameters of groups travel.
bool IsLaneOfGroups(const std::string& lane) {
  return lane.starts_with("shard") || lane.starts_with("replicate");
}

// Adds the events of one rank to the sums of the groups.
class RankSums {
 public:
  // `labels`: those of operations on parameters. Empty: each module below the model is a group.
  RankSums(const std::set<std::string>& labels, std::vector<GroupTimes>& groups)
      : labels_(labels), groups_(groups) {}

  void Add(std::vector<Span> spans) {
    SortByNesting(spans);
    for (const Span& span : spans) {
      while (!open_.empty() && open_.back().end_us <= span.begin_us) open_.pop_back();
      if (span.kind == Kind::kForward || span.kind == Kind::kBackward) AddPass(span);
      if (span.kind == Kind::kWait) AddWait(span);
      if (span.kind == Kind::kGather) GroupOf(span).gather_ms += span.ms();
      if (span.kind == Kind::kReduce) GroupOf(span).reduce_ms += span.ms();
    }
  }

 private:
  // A pass of a group's module, in which waits and passes of other modules lie.
  struct OpenPass {
    std::string group;
    Kind kind;
    double end_us;
  };

  GroupTimes& Row(const std::string& group) { return RowOf(groups_, &GroupTimes::group, group); }
  GroupTimes& GroupOf(const Span& operation) {
    if (!IsLaneOfGroups(operation.lane)) return Row(absl::StrCat("(", operation.lane, ")"));
    // A barrier of one group has its label.
    if (operation.is_barrier && !operation.name.empty() && labels_.count(operation.name) == 0) {
      return Row(absl::StrCat("(", operation.name, ")"));
    }
    return Row(operation.name.empty() ? kRoot : operation.name);
  }
  double& TimeOf(const OpenPass& pass) {
    GroupTimes& row = Row(pass.group);
    return pass.kind == Kind::kForward ? row.forward_ms : row.backward_ms;
  }

  // Passes of modules inside of a group's pass are part of it.
  void AddPass(const Span& span) {
    const bool in_root = !open_.empty() && open_.back().group == kRoot;
    if (!open_.empty() && !in_root) return;
    const bool is_root = span.name.empty();
    if (is_root == in_root) return;
    if (!is_root && !labels_.empty() && labels_.count(span.name) == 0) return;  // Part of the root's group.
    if (in_root) TimeOf(open_.back()) -= span.ms();
    open_.push_back({is_root ? kRoot : span.name, span.kind, span.end_us});
    TimeOf(open_.back()) += span.ms();
  }

  void AddWait(const Span& span) {
    GroupOf(span).exposed_ms += span.ms();
    if (!open_.empty()) TimeOf(open_.back()) -= span.ms();
  }

  const std::set<std::string>& labels_;
  std::vector<GroupTimes>& groups_;
  std::vector<OpenPass> open_;  // The root's, then that of a group in it.
};

// "model.layers.*.mlp" for each of the blocks.
std::string WithoutNumbers(const std::string& module) {
  std::vector<std::string> parts = absl::StrSplit(module, '.');
  for (std::string& part : parts) {
    if (!part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit)) part = "*";
  }
  return absl::StrJoin(parts, ".");
}

std::string ModuleOf(const Span& span) {
  if (span.kind == Kind::kUpdate) return absl::StrCat("(", span.name, ")");
  return span.name.empty() ? kRoot : WithoutNumbers(span.name);
}

// Adds the times of one rank's modules. Each span is taken from the one that contains it.
class ModuleSums {
 public:
  explicit ModuleSums(std::vector<ModuleTimes>& modules) : modules_(modules) {}

  void Add(std::vector<Span> spans) {
    SortByNesting(spans);
    for (const Span& span : spans) {
      const bool is_pass = span.kind == Kind::kForward || span.kind == Kind::kBackward;
      if (!is_pass && span.kind != Kind::kUpdate && span.kind != Kind::kProduct && span.kind != Kind::kWait)
        continue;
      CloseUntil(span.begin_us);
      const bool is_recomputed = is_pass && !open_.empty() && open_.back().kind == Kind::kBackward;
      if (span.kind == Kind::kProduct) {
        if (!open_.empty()) open_.back().products_ms += span.ms();
        continue;
      }
      if (!open_.empty()) open_.back().own_ms -= span.ms();
      if (span.kind != Kind::kWait)
        open_.push_back(
            {ModuleOf(span), is_recomputed ? Kind::kBackward : span.kind, span.end_us, span.ms(), 0});
    }
    CloseUntil(std::numeric_limits<double>::infinity());
  }

 private:
  struct OpenSpan {
    std::string module;
    Kind kind;
    double end_us, own_ms, products_ms;
  };

  void CloseUntil(double time_us) {
    while (!open_.empty() && open_.back().end_us <= time_us) {
      const OpenSpan& span = open_.back();
      ModuleTimes& row = RowOf(modules_, &ModuleTimes::module, span.module);
      (span.kind == Kind::kForward    ? row.forward_ms
       : span.kind == Kind::kBackward ? row.backward_ms
                                      : row.update_ms) += span.own_ms;
      row.products_ms += span.products_ms;
      open_.pop_back();
    }
  }

  std::vector<ModuleTimes>& modules_;
  std::vector<OpenSpan> open_;
};

void ReadSteps(const std::vector<Span>& spans, TraceSummary& summary, double& count) {
  for (const Span& span : spans) {
    if (span.kind == Kind::kWait) summary.exposed_ms += span.ms();
    if (span.kind != Kind::kStep) continue;
    int64_t step = 0;
    if (!absl::SimpleAtoi(span.name.substr(span.name.find(' ') + 1), &step)) continue;
    summary.first_step = count == 0 ? step : std::min(summary.first_step, step);
    summary.last_step = std::max(summary.last_step, step);
    summary.step_ms += span.ms();
    ++count;
  }
}

void DivideBy(double count, TraceSummary& summary) {
  summary.step_ms /= count;
  summary.exposed_ms /= count;
  for (GroupTimes& row : summary.groups) {
    for (double* time :
         {&row.gather_ms, &row.reduce_ms, &row.forward_ms, &row.backward_ms, &row.exposed_ms}) {
      *time /= count;
    }
  }
  for (ModuleTimes& row : summary.modules) {
    for (double* time : {&row.forward_ms, &row.backward_ms, &row.update_ms, &row.products_ms}) *time /= count;
  }
}

// A row of a table: a name, and times in milliseconds.
struct TimeRow {
  std::string name;
  std::vector<double> times;
};

// The rows with their sum, below the titles of their columns. Names take `name_columns`.
std::string TableOf(int name_columns, const std::vector<std::string>& titles, std::vector<TimeRow> rows) {
  TimeRow sum{"all", std::vector<double>(titles.size() - 1)};
  for (const TimeRow& row : rows) {
    for (size_t i = 0; i < row.times.size(); ++i) sum.times[i] += row.times[i];
  }
  rows.push_back(std::move(sum));
  std::string table = absl::StrFormat("%-*s", name_columns, titles.front());
  for (size_t i = 1; i < titles.size(); ++i) absl::StrAppendFormat(&table, " %8s", titles[i]);
  for (const TimeRow& row : rows) {
    absl::StrAppendFormat(&table, "\n%-*s", name_columns,
                          ShortenedName(row.name, static_cast<size_t>(name_columns)));
    for (const double time : row.times) absl::StrAppendFormat(&table, " %8.2f", time);
  }
  return table + "\n";
}

std::string GroupTable(const std::vector<GroupTimes>& groups) {
  std::vector<TimeRow> rows;
  rows.reserve(groups.size() + 1);
  for (const GroupTimes& row : groups) {
    rows.push_back(
        {row.group, {row.gather_ms, row.reduce_ms, row.forward_ms, row.backward_ms, row.exposed_ms}});
  }
  return TableOf(25, {"group", "gather", "reduce", "forward", "backward", "exposed"}, std::move(rows));
}

std::string ModuleTable(const std::vector<ModuleTimes>& modules) {
  std::vector<TimeRow> rows;
  rows.reserve(modules.size() + 1);
  for (const ModuleTimes& row : modules)
    rows.push_back({row.module, {row.forward_ms, row.backward_ms, row.update_ms, row.products_ms}});
  return TableOf(39, {"module", "forward", "backward", "update", "products"}, std::move(rows));
}

}  // namespace

absl::StatusOr<TraceSummary> ReadTraceSummary(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Events events, ReadEvents(path));
  TraceSummary summary;
  summary.ranks = static_cast<int64_t>(events.spans.size());
  std::set<std::string> labels;
  double steps = 0;
  for (const auto& [rank, spans] : events.spans) {
    ReadSteps(spans, summary, steps);
    for (const Span& span : spans) {
      if (IsLaneOfGroups(span.lane) && !span.is_barrier) labels.insert(span.name);
    }
  }
  if (steps == 0) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' has no whole step: trace at least one step with --trace-steps"));
  }
  for (const auto& [rank, spans] : events.spans) {
    RankSums(labels, summary.groups).Add(spans);
    ModuleSums(summary.modules).Add(spans);
  }
  std::stable_partition(summary.groups.begin(), summary.groups.end(),
                        [](const GroupTimes& row) { return !row.group.starts_with('('); });
  DivideBy(steps, summary);
  return summary;
}

std::string ShortenedName(const std::string& name, size_t columns) {
  return name.size() <= columns ? name : absl::StrCat("..", name.substr(name.size() - columns + 2));
}

std::string ToText(const TraceSummary& summary) {
  return absl::StrFormat("%d %s, steps %d to %d: %.2f ms a step, %.2f ms of it exposed\n", summary.ranks,
                         summary.ranks == 1 ? "rank" : "ranks", summary.first_step, summary.last_step,
                         summary.step_ms, summary.exposed_ms) +
         "mean ms of a step of a rank:\n" + GroupTable(summary.groups) +
         "\nthe same by module, without modules inside and without waits:\n" + ModuleTable(summary.modules);
}

}  // namespace weft
