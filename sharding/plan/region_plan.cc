#include "sharding/plan/region_plan.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "sharding/plan/range_allocator.h"

namespace weft {
namespace {

// Allocates and frees ranges in the order in which the schedule gathers and reshards.
class RegionSimulation {
 public:
  RegionSimulation(absl::Span<const size_t> image_bytes, const ShardingPolicy& policy)
      : image_bytes_(image_bytes), policy_(policy), places_(image_bytes.size()) {}

  void Evaluate(absl::Span<const PassEvent> order) {
    Run(
        order, [](int, const ExecutionOrder&) { return true; }, NoPrefetch);
    for (int group = 0; group < static_cast<int>(places_.size()); ++group) Reshard(group);
  }
  void Train(absl::Span<const PassEvent> order) {
    const ExecutionOrder backward(Reversed(order));
    const auto reshards = [&](int group, const ExecutionOrder& forward) {
      if (group == kRootGroup) return policy_.reshard_root_after_forward;
      return policy_.reshard_after_forward &&
             !StaysUnshardedForBackward(forward, backward, group, policy_.PrefetchDepth());
    };
    const auto prefetched = [&](const ExecutionOrder& forward) {
      return PrefetchAcrossBackwardStart(forward, backward, policy_.PrefetchDepth());
    };
    Run(order, reshards, prefetched);
    Run(
        backward.expected(), [](int, const ExecutionOrder&) { return true; }, NoPrefetch);
  }
  size_t high_water() const { return ranges_.high_water(); }

 private:
  static std::vector<int> NoPrefetch(const ExecutionOrder&) { return {}; }

  // `more`: groups gathered ahead in addition to the prefetch depth.
  template <typename Reshards, typename More>
  void Run(absl::Span<const PassEvent> order, const Reshards& reshards, const More& more) {
    ExecutionOrder pass({order.begin(), order.end()});
    pass.Begin();
    for (const PassEvent event : order) {
      pass.Visit(event);
      if (event.kind == PassEvent::Kind::kEnd) {
        if (reshards(event.group, pass)) Reshard(event.group);
        continue;
      }
      Gather(event.group);
      for (const int next : pass.Next(policy_.PrefetchDepth())) Gather(next);
      for (const int next : more(pass)) Gather(next);
    }
  }

  void Gather(int group) {
    std::optional<size_t>& place = places_[static_cast<size_t>(group)];
    const size_t bytes = image_bytes_[static_cast<size_t>(group)];
    if (!place && bytes > 0) place = ranges_.Allocate(bytes);
  }
  void Reshard(int group) {
    std::optional<size_t>& place = places_[static_cast<size_t>(group)];
    if (place) ranges_.Free(*place);
    place.reset();
  }

  const absl::Span<const size_t> image_bytes_;
  const ShardingPolicy& policy_;
  RangeAllocator ranges_;
  std::vector<std::optional<size_t>> places_;
};

}  // namespace

size_t PlanRegionBytes(absl::Span<const PassEvent> module_order, absl::Span<const size_t> image_bytes,
                       const ShardingPolicy& policy) {
  RegionSimulation simulation(image_bytes, policy);
  simulation.Evaluate(module_order);
  simulation.Train(module_order);
  return simulation.high_water();
}

}  // namespace weft
