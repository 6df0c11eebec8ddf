#include "src/comm/collectives/collective_plan.h"

#include <numeric>

namespace weft {

PartLayout PartLayout::FromCounts(std::vector<int64_t> counts) {
  PartLayout layout{std::move(counts), {}};
  layout.offsets.resize(layout.counts.size());
  std::exclusive_scan(layout.counts.begin(), layout.counts.end(), layout.offsets.begin(), int64_t{0});
  return layout;
}

}  // namespace weft
