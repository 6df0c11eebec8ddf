#include "context_parallel/layouts/ring_plan.h"

#include <algorithm>

namespace weft {

RingPlan::RingPlan(const AttentionMask& mask, const std::vector<TokenRuns>& parts)
    : ranks_(static_cast<int>(parts.size())), sees_(parts.size() * parts.size()), reaches_(parts.size()) {
  for (int source = 0; source < ranks_; ++source) {
    Reach& reach = reaches_[static_cast<size_t>(source)];
    for (int distance = 0; distance < ranks_; ++distance) {
      const TokenRuns& queries = parts[static_cast<size_t>(RankAt(source, distance))];
      if (VisiblePairs(mask, queries, parts[static_cast<size_t>(source)]) == 0) continue;
      sees_[At(source, distance)] = true;
      if (reach.first == 0) reach.first = distance;
      reach.last = distance;
    }
    hops_ = std::max(hops_, reach.last);
  }
}

bool RingPlan::Sees(int source, int distance) const { return sees_[At(source, distance)]; }

bool RingPlan::GradientsTravel(int source, int distance) const {
  const Reach& reach = reaches_[static_cast<size_t>(source)];
  return reach.first >= 1 && distance >= reach.first && distance < reach.last;
}

bool RingPlan::GradientsGoHome(int source, int distance) const {
  return distance >= 1 && distance == reaches_[static_cast<size_t>(source)].last;
}

bool RingPlan::AnyGradientsMove(int distance) const {
  for (int source = 0; source < ranks_; ++source) {
    if (GradientsTravel(source, distance) || GradientsGoHome(source, distance)) return true;
  }
  return false;
}

}  // namespace weft
