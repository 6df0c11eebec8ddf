#include "weft/sharding/schedule_rules.h"

#include <algorithm>

namespace weft {

std::vector<int> PrefetchRules::GathersAhead(PassPart /*part*/, int /*group*/,
                                             absl::Span<const int> next) const {
  const absl::Span<const int> first = next.first(std::min(next.size(), static_cast<size_t>(depth_)));
  return {first.begin(), first.end()};
}

Priority PrefetchRules::GatherPriority(PassPart /*part*/, int /*group*/) const { return Priority::kPrefetch; }

std::vector<int> PrefetchRules::Reductions(int group, absl::Span<const int> /*complete*/) const {
  return {group};
}

Priority PrefetchRules::ReductionPriority(int /*group*/) const { return Priority::kReduce; }

}  // namespace weft
