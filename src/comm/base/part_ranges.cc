#include "weft/comm/part_ranges.h"

#include <algorithm>
#include <limits>

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

void Append(std::vector<PartRanges::PlacedRange>& part, ElementRange range, absl::Span<const int64_t> cuts) {
  while (range.count > 0) {
    const auto* cut = std::upper_bound(cuts.begin(), cuts.end(), range.begin);
    const int64_t end = cut == cuts.end() ? range.end() : std::min(*cut, range.end());
    const bool is_adjacent = !part.empty() && part.back().range.end() == range.begin;
    if (is_adjacent && !std::binary_search(cuts.begin(), cuts.end(), range.begin)) {
      part.back().range.count += end - range.begin;
    } else {
      part.push_back({{range.begin, end - range.begin}, part.empty() ? 0 : part.back().end_place()});
    }
    range = {end, range.end() - end};
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PartRanges>> PartRanges::Make(
    absl::Span<const std::vector<ElementRange>> parts, absl::Span<const int64_t> cuts) {
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
      if (range.count > std::numeric_limits<int64_t>::max() - std::max(range.begin, table->total_ + count)) {
        return absl::InvalidArgumentError(absl::StrCat("part range of rank ", rank, " begins at ",
                                                       range.begin, " and has ", range.count,
                                                       " elements: more than 64 bits count"));
      }
      if (range.count == 0) continue;
      all.push_back({range, rank});
      Append(part, range, cuts);
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

std::shared_ptr<const PartRanges> PartRanges::Select(absl::Span<const int> ranks) const {
  auto table = std::shared_ptr<PartRanges>(new PartRanges());
  for (const int rank : ranks) {
    table->parts_.push_back(parts_[static_cast<size_t>(rank)]);
    table->counts_.push_back(counts_[static_cast<size_t>(rank)]);
    table->total_ += table->counts_.back();
  }
  table->extent_ = extent_;
  table->hash_ = hash_;
  return table;
}

}  // namespace weft
