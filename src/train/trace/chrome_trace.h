// Trace events of one rank in the JSON format of Chrome's trace viewer, which Perfetto reads
// ("Trace Event Format", Google, 2016).
//
// A rank is a process of the format. Its tracks: computation with the waits in it, then for each lane the
// operations, then the slices between nodes. Spans that overlap lie on further tracks of the same name.
//
// Pure. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/types/span.h>

#include "weft/comm/engine_trace.h"
#include "weft/core/spans.h"

namespace weft {

struct RankTrace {
  int rank = 0;
  int node = 0;
  int64_t zero_ns = 0;  // The rank's time that is 0 in the file.
  std::vector<SpanRecord> spans;
  EngineTrace engine;
};

struct Interval {
  int64_t begin_ns, end_ns;
};
// The row of each interval, such that no two intervals of a row overlap, with as few rows as possible.
std::vector<int> AssignRows(absl::Span<const Interval> intervals);

// The events as JSON objects, each on a line of its own, with a comma between two lines. Times and durations
// are microseconds. Empty trace: names of the process alone.
std::string TraceEvents(const RankTrace& trace);

}  // namespace weft
