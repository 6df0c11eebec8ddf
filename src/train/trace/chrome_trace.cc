#include "src/train/trace/chrome_trace.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "src/train/files/json.h"
#include "weft/core/status.h"

namespace weft {
namespace {

class Writer {
 public:
  Writer(int rank, int64_t zero_ns) : rank_(rank), zero_ns_(zero_ns) {}

  // Adds a track at the bottom, and returns its number.
  int AddTrack(const std::string& name) {
    const int track = tracks_++;
    Add({{"ph", "M"}, {"name", "thread_name"}, {"pid", rank_}, {"tid", track}, {"args", {{"name", name}}}});
    Add({{"ph", "M"},
         {"name", "thread_sort_index"},
         {"pid", rank_},
         {"tid", track},
         {"args", {{"sort_index", track}}}});
    return track;
  }

  void AddSpan(int track, std::string_view category, const std::string& name, Interval interval,
               Json arguments = Json::object()) {
    Json event = {{"ph", "X"},
                  {"name", name},
                  {"cat", category},
                  {"pid", rank_},
                  {"tid", track},
                  {"ts", Microseconds(interval.begin_ns - zero_ns_)},
                  {"dur", Microseconds(interval.end_ns - interval.begin_ns)}};
    if (!arguments.empty()) event["args"] = std::move(arguments);
    Add(event);
  }

  void NameProcess(const std::string& name) {
    Add({{"ph", "M"}, {"name", "process_name"}, {"pid", rank_}, {"args", {{"name", name}}}});
    Add({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank_}, {"args", {{"sort_index", rank_}}}});
  }

  std::string Take() { return std::move(text_); }

 private:
  static double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }
  void Add(const Json& event) { absl::StrAppend(&text_, text_.empty() ? "" : ",\n", JsonText(event)); }

  const int rank_;
  const int64_t zero_ns_;
  int tracks_ = 0;
  std::string text_;
};

// Adds a track for each row of `intervals`, and returns the track of each interval.
std::vector<int> AddTracks(Writer& writer, const std::string& name, absl::Span<const Interval> intervals) {
  std::vector<int> rows = AssignRows(intervals);
  std::vector<int> tracks;
  const int count = rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end()) + 1;
  tracks.reserve(static_cast<size_t>(count));
  for (int row = 0; row < count; ++row)
    tracks.push_back(writer.AddTrack(row == 0 ? name : absl::StrCat(name, " (", row + 1, ")")));
  for (int& row : rows) row = tracks[static_cast<size_t>(row)];
  return rows;
}

template <typename Item>
std::map<std::string, std::vector<const Item*>> ByLane(const std::vector<Item>& items) {
  std::map<std::string, std::vector<const Item*>> lanes;
  for (const Item& item : items) lanes[item.lane].push_back(&item);
  return lanes;
}

template <typename Item, typename IntervalOf>
std::vector<Interval> IntervalsOf(const std::vector<const Item*>& items, const IntervalOf& interval_of) {
  std::vector<Interval> intervals;
  intervals.reserve(items.size());
  for (const Item* item : items) intervals.push_back(interval_of(*item));
  return intervals;
}

Interval RunOf(const TracedOperation& operation) { return {operation.started_ns, operation.ready_ns}; }
Interval TransferOf(const TracedSlice& slice) { return {slice.begin_ns, slice.end_ns}; }

std::string NameOf(const TracedOperation& operation) {
  const std::string kind(Name(operation.kind));
  return operation.label.empty() ? kind : absl::StrCat(kind, " ", operation.label);
}

void AddComputation(Writer& writer, const RankTrace& trace) {
  const int track = writer.AddTrack("compute");
  for (const SpanRecord& span : trace.spans)
    writer.AddSpan(track, span.category, span.name, {span.begin_ns, span.end_ns});
  for (const TracedWait& wait : trace.engine.waits) {
    writer.AddSpan(track, "wait", absl::StrCat("wait for ", wait.operation), {wait.begin_ns, wait.end_ns});
  }
}

void AddOperations(Writer& writer, const EngineTrace& trace) {
  std::map<std::pair<std::string, uint64_t>, int64_t> slices;  // By lane and sequence.
  for (const TracedSlice& slice : trace.slices) slices[{slice.lane, slice.sequence}] += slice.slices;
  for (const auto& [lane, operations] : ByLane(trace.operations)) {
    const std::vector<int> tracks = AddTracks(writer, lane, IntervalsOf(operations, RunOf));
    for (size_t i = 0; i < operations.size(); ++i) {
      const TracedOperation& operation = *operations[i];
      const auto counted = slices.find({lane, operation.sequence});
      writer.AddSpan(
          tracks[i], "operation", NameOf(operation), RunOf(operation),
          {{"bytes", operation.bytes},
           {"dtype", Name(operation.dtype)},
           {"priority", Name(operation.priority)},
           {"sequence", operation.sequence},
           {"slices", counted == slices.end() ? 0 : counted->second},
           {"queued_us", static_cast<double>(operation.started_ns - operation.submitted_ns) / 1e3},
           {"released_after_us", static_cast<double>(operation.released_ns - operation.ready_ns) / 1e3}});
    }
  }
}

void AddSlices(Writer& writer, const EngineTrace& trace) {
  for (const auto& [lane, slices] : ByLane(trace.slices)) {
    const std::vector<int> tracks =
        AddTracks(writer, absl::StrCat(lane, " slices"), IntervalsOf(slices, TransferOf));
    for (size_t i = 0; i < slices.size(); ++i) {
      const TracedSlice& slice = *slices[i];
      writer.AddSpan(tracks[i], "slice", absl::StrCat(slice.sent ? "to rank " : "from rank ", slice.peer),
                     TransferOf(slice),
                     {{"bytes", slice.bytes},
                      {"sequence", slice.sequence},
                      {"slice", slice.number},
                      {"slices", slice.slices}});
    }
  }
}

}  // namespace

std::vector<int> AssignRows(absl::Span<const Interval> intervals) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].begin_ns < intervals[b].begin_ns; });
  std::vector<int> rows(intervals.size());
  std::vector<int64_t> row_ends;  // End of the last interval of each row.
  for (const size_t i : order) {
    const auto free = std::find_if(row_ends.begin(), row_ends.end(),
                                   [&](int64_t end) { return end <= intervals[i].begin_ns; });
    rows[i] = static_cast<int>(free - row_ends.begin());
    if (free == row_ends.end()) {
      row_ends.push_back(intervals[i].end_ns);
    } else {
      *free = intervals[i].end_ns;
    }
  }
  return rows;
}

std::string TraceEvents(const RankTrace& trace) {
  Writer writer(trace.rank, trace.zero_ns);
  writer.NameProcess(absl::StrFormat("rank %d (node %d)", trace.rank, trace.node));
  AddComputation(writer, trace);
  AddOperations(writer, trace.engine);
  AddSlices(writer, trace.engine);
  return writer.Take();
}

}  // namespace weft
