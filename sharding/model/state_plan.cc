// Plan of the copies that collect elements of an array from pieces. Pure.
#include <algorithm>

#include "weft/core/status.h"
#include "weft/sharding/state_dict.h"

namespace weft {
namespace {

// Adjacent elements of one source.
struct Segment {
  int64_t start;
  int64_t count;
  int source;
  int64_t from;
  int64_t end() const { return start + count; }
};

// All elements that the sources hold, ascending, each once.
std::vector<Segment> DisjointSegments(absl::Span<const ElementRuns> sources) {
  std::vector<Segment> segments;
  for (size_t source = 0; source < sources.size(); ++source) {
    const ElementRuns& runs = sources[source];
    for (int64_t run = 0; run < runs.runs && runs.run_length > 0; ++run) {
      segments.push_back({runs.start + run * runs.run_stride, runs.run_length, static_cast<int>(source),
                          run * runs.run_length});
    }
  }
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
    return a.start != b.start ? a.start < b.start : a.count > b.count;
  });
  std::vector<Segment> disjoint;
  for (Segment segment : segments) {
    const int64_t covered = disjoint.empty() ? segment.start : disjoint.back().end();
    if (segment.end() <= covered) continue;
    const int64_t skipped = std::max<int64_t>(0, covered - segment.start);
    disjoint.push_back(
        {segment.start + skipped, segment.count - skipped, segment.source, segment.from + skipped});
  }
  return disjoint;
}

// Plans the copies of elements [start, start + count) to place `to`.
absl::Status PlanRun(const std::vector<Segment>& segments, int64_t start, int64_t count, int64_t to,
                     std::vector<StateCopy>& copies) {
  auto segment =
      std::upper_bound(segments.begin(), segments.end(), start,
                       [](int64_t element, const Segment& candidate) { return element < candidate.end(); });
  for (const int64_t end = start + count; start < end; ++segment) {
    if (segment == segments.end() || segment->start > start) {
      return absl::NotFoundError(absl::StrCat("element ", start, " is in none of the pieces"));
    }
    const int64_t taken = std::min(end, segment->end()) - start;
    copies.push_back({segment->source, segment->from + start - segment->start, to, taken});
    start += taken;
    to += taken;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<StateCopy>> PlanStateCopies(absl::Span<const ElementRuns> sources,
                                                       const ElementRuns& wanted) {
  const std::vector<Segment> segments = DisjointSegments(sources);
  std::vector<StateCopy> copies;
  for (int64_t run = 0; run < wanted.runs && wanted.run_length > 0; ++run) {
    WEFT_RETURN_IF_ERROR(PlanRun(segments, wanted.start + run * wanted.run_stride, wanted.run_length,
                                 run * wanted.run_length, copies));
  }
  return copies;
}

}  // namespace weft
