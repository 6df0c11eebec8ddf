// Plans of the copies that collect elements of an array from pieces. Pure.
#include <algorithm>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"
#include "weft/sharding/state_dict.h"

namespace weft {

PieceIndex::PieceIndex(absl::Span<const ElementRuns> sources) {
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
  for (const Segment& segment : segments) {
    const int64_t covered = segments_.empty() ? segment.start : segments_.back().end();
    if (segment.end() <= covered) continue;
    const int64_t skipped = std::max<int64_t>(0, covered - segment.start);
    segments_.push_back(
        {segment.start + skipped, segment.count - skipped, segment.source, segment.from + skipped});
  }
}

absl::Status PieceIndex::PlanRun(int64_t start, int64_t count, int64_t to,
                                 std::vector<StateCopy>& copies) const {
  auto segment =
      std::upper_bound(segments_.begin(), segments_.end(), start,
                       [](int64_t element, const Segment& candidate) { return element < candidate.end(); });
  for (const int64_t end = start + count; start < end; ++segment) {
    if (segment == segments_.end() || segment->start > start) {
      return absl::NotFoundError(absl::StrCat("element ", start, " is in none of the pieces"));
    }
    const int64_t taken = std::min(end, segment->end()) - start;
    copies.push_back({segment->source, segment->from + start - segment->start, to, taken});
    start += taken;
    to += taken;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StateCopy>> PieceIndex::Plan(const ElementRuns& wanted) const {
  std::vector<StateCopy> copies;
  for (int64_t run = 0; run < wanted.runs && wanted.run_length > 0; ++run) {
    WEFT_RETURN_IF_ERROR(
        PlanRun(wanted.start + run * wanted.run_stride, wanted.run_length, run * wanted.run_length, copies));
  }
  return copies;
}

}  // namespace weft
