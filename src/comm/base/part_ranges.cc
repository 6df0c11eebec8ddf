#include "weft/comm/part_ranges.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "weft/core/hash.h"

namespace weft {
namespace {

struct OwnedRange {
  ElementRange range;
  size_t rank;
};

absl::Status CheckDisjoint(std::vector<OwnedRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const OwnedRange& a, const OwnedRange& b) { return a.range.begin < b.range.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    const OwnedRange& left = ranges[i - 1];
    const OwnedRange& right = ranges[i];
    if (left.range.end() <= right.range.begin) continue;
    return absl::InvalidArgumentError(absl::StrCat("part ranges [", left.range.begin, ", ", left.range.end(),
                                                   ") of rank ", left.rank, " and [", right.range.begin, ", ",
                                                   right.range.end(), ") of rank ", right.rank,
                                                   " overlap; every element belongs to one part"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PartRanges>> PartRanges::Make(
    absl::Span<const std::vector<ElementRange>> parts) {
  auto table = std::shared_ptr<PartRanges>(new PartRanges());
  std::vector<OwnedRange> all;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::vector<PlacedRange>& part = table->parts_.emplace_back();
    int64_t count = 0;
    for (const ElementRange& range : parts[rank]) {
      if (range.begin < 0 || range.count < 0) {
        return absl::InvalidArgumentError(absl::StrCat("part range of rank ", rank, " begins at ",
                                                       range.begin, " and has ", range.count,
                                                       " elements; neither may be negative"));
      }
      if (range.count == 0) continue;
      all.push_back({range, rank});
      if (!part.empty() && part.back().range.end() == range.begin) {
        part.back().range.count += range.count;
      } else {
        part.push_back({range, count});
      }
      count += range.count;
      table->extent_ = std::max(table->extent_, range.end());
    }
    table->counts_.push_back(count);
    table->total_ += count;
  }
  const auto hash = [&table](const void* data, size_t bytes) {
    table->hash_ = Hash64(data, bytes, table->hash_);
  };
  hash(table->counts_.data(), table->counts_.size() * sizeof(int64_t));
  for (const std::vector<PlacedRange>& part : table->parts_) {
    hash(part.data(), part.size() * sizeof(PlacedRange));
  }
  if (const absl::Status disjoint = CheckDisjoint(std::move(all)); !disjoint.ok()) return disjoint;
  return table;
}

}  // namespace weft
