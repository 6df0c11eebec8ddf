#include "context_parallel/layouts/ring_plan.h"

#include <algorithm>

namespace weft {

TokenRange AttendingQueries(const AttentionMask& mask, const TokenRuns& queries, const TokenRuns& keys) {
  TokenRange attending;
  int64_t start = 0;
  for (const TokenRun& run : queries) {
    const bool attends = std::any_of(keys.begin(), keys.end(), [&](const TokenRun& key_run) {
      return VisiblePairs(mask, run, key_run) > 0;
    });
    if (attends) {
      if (attending.count == 0) attending.begin = start;
      attending.count = start + run.count - attending.begin;
    }
    start += run.count;
  }
  return attending;
}

RingPlan::RingPlan(const AttentionMask& mask, const std::vector<TokenRuns>& parts)
    : ranks_(static_cast<int>(parts.size())), attends_(parts.size() * parts.size()), spans_(parts.size()) {
  for (int owner = 0; owner < ranks_; ++owner) {
    Span& span = spans_[static_cast<size_t>(owner)];
    for (int distance = 0; distance < ranks_; ++distance) {
      const TokenRuns& queries = parts[static_cast<size_t>(RankAt(owner, distance))];
      if (VisiblePairs(mask, queries, parts[static_cast<size_t>(owner)]) == 0) continue;
      attends_[Index(owner, distance)] = true;
      if (span.first == 0) span.first = distance;
      span.last = distance;
    }
    hops_ = std::max(hops_, span.last);
  }
}

bool RingPlan::PassesGradientsOn(int owner, int distance) const {
  const Span& span = spans_[static_cast<size_t>(owner)];
  return span.first >= 1 && distance >= span.first && distance < span.last;
}

bool RingPlan::ReturnsGradients(int owner, int distance) const {
  return distance >= 1 && distance == spans_[static_cast<size_t>(owner)].last;
}

bool RingPlan::SendsAnyGradients(int distance) const {
  for (int owner = 0; owner < ranks_; ++owner) {
    if (PassesGradientsOn(owner, distance) || ReturnsGradients(owner, distance)) return true;
  }
  return false;
}

}  // namespace weft
