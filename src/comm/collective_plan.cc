#include "src/comm/collective_plan.h"

#include <algorithm>

namespace weft {

PartLayout PartLayout::FromCounts(std::vector<int64_t> counts) {
  PartLayout layout{std::move(counts), {}};
  layout.offsets.resize(layout.counts.size());
  std::exclusive_scan(layout.counts.begin(), layout.counts.end(), layout.offsets.begin(), int64_t{0});
  return layout;
}

PartLayout PartLayout::CacheLines(int64_t total, int parts, DType dtype) {
  constexpr int64_t kLineBytes = 64;
  const int64_t line = kLineBytes / static_cast<int64_t>(SizeOf(dtype));
  const int64_t lines = (total + line - 1) / line;
  const int64_t range = (lines + parts - 1) / parts * line;
  std::vector<int64_t> counts(static_cast<size_t>(parts));
  for (int part = 0; part < parts; ++part) {
    counts[static_cast<size_t>(part)] = std::clamp<int64_t>(total - part * range, 0, range);
  }
  return FromCounts(std::move(counts));
}

}  // namespace weft
