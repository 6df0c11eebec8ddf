#include "sharding/plan/region_plan.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "sharding/plan/range_allocator.h"

namespace weft {
namespace {

// Images in ranges of one region.
class RegionImages {
 public:
  // True if the last group of forward gathers for backward: Note [From forward to backward].
  static constexpr bool kGathersForBackward = true;

  explicit RegionImages(absl::Span<const size_t> image_bytes)
      : image_bytes_(image_bytes), places_(image_bytes.size()) {}

  void Gather(int group) {
    std::optional<size_t>& place = places_[static_cast<size_t>(group)];
    const size_t bytes = image_bytes_[static_cast<size_t>(group)];
    if (!place && bytes > 0) place = ranges_.Allocate(bytes);
  }
  static void Await(int /*group*/) {}
  void Reshard(int group) {
    std::optional<size_t>& place = places_[static_cast<size_t>(group)];
    if (place) ranges_.Free(*place);
    place.reset();
  }
  size_t high_water() const { return ranges_.high_water(); }

 private:
  const absl::Span<const size_t> image_bytes_;
  RangeAllocator ranges_;
  std::vector<std::optional<size_t>> places_;
};

// Images in blocks of their own.
class PrivateImages {
 public:
  static constexpr bool kGathersForBackward = false;

  PrivateImages(absl::Span<const size_t> image_bytes, absl::Span<const size_t> gathered_bytes)
      : image_bytes_(image_bytes), gathered_bytes_(gathered_bytes), states_(image_bytes.size()) {}

  void Gather(int group) {
    const auto i = static_cast<size_t>(group);
    if (states_[i] != State::kSharded) return;
    states_[i] = State::kGathering;
    in_use_ += image_bytes_[i] + gathered_bytes_[i];
    high_water_ = std::max(high_water_, in_use_);
  }
  void Await(int group) {
    const auto i = static_cast<size_t>(group);
    if (states_[i] == State::kGathering) in_use_ -= gathered_bytes_[i];
    states_[i] = State::kGathered;
  }
  void Reshard(int group) {
    const auto i = static_cast<size_t>(group);
    if (states_[i] == State::kSharded) return;
    Await(group);
    in_use_ -= image_bytes_[i];
    states_[i] = State::kSharded;
  }
  size_t high_water() const { return high_water_; }

 private:
  enum class State : uint8_t { kSharded, kGathering, kGathered };

  const absl::Span<const size_t> image_bytes_, gathered_bytes_;
  std::vector<State> states_;
  size_t in_use_ = 0;
  size_t high_water_ = 0;
};

// Gathers and reshards `images` in the order in which the schedule does.
template <typename Images>
class PassSimulation {
 public:
  PassSimulation(Images& images, int groups, const ShardingPolicy& policy)
      : images_(images), groups_(groups), policy_(policy) {}

  void Evaluate(absl::Span<const PassEvent> order) {
    Run(
        order, [](int, const ExecutionOrder&) { return true; }, NoPrefetch);
    for (int group = 0; group < groups_; ++group) images_.Reshard(group);
  }
  void Train(absl::Span<const PassEvent> order) {
    const ExecutionOrder backward(Reversed(order));
    const auto reshards = [&](int group, const ExecutionOrder& forward) {
      if (group == kRootGroup) return policy_.reshard_root_after_forward;
      return policy_.reshard_after_forward &&
             !StaysUnshardedForBackward(forward, backward, group, policy_.PrefetchDepth());
    };
    const auto prefetched = [&](const ExecutionOrder& forward) -> std::vector<int> {
      if (!Images::kGathersForBackward) return {};
      return PrefetchAcrossBackwardStart(forward, backward, policy_.PrefetchDepth());
    };
    Run(order, reshards, prefetched);
    Run(
        backward.expected(), [](int, const ExecutionOrder&) { return true; }, NoPrefetch);
  }

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
        if (reshards(event.group, pass)) images_.Reshard(event.group);
        continue;
      }
      images_.Gather(event.group);
      for (const int next : pass.Next(policy_.PrefetchDepth())) images_.Gather(next);
      for (const int next : more(pass)) images_.Gather(next);
      images_.Await(event.group);
    }
  }

  Images& images_;
  const int groups_;
  const ShardingPolicy& policy_;
};

template <typename Images>
size_t HighWater(Images images, size_t groups, absl::Span<const PassEvent> module_order,
                 const ShardingPolicy& policy) {
  PassSimulation<Images> simulation(images, static_cast<int>(groups), policy);
  simulation.Evaluate(module_order);
  simulation.Train(module_order);
  return images.high_water();
}

}  // namespace

size_t PlanRegionBytes(absl::Span<const PassEvent> module_order, absl::Span<const size_t> image_bytes,
                       const ShardingPolicy& policy) {
  return HighWater(RegionImages(image_bytes), image_bytes.size(), module_order, policy);
}

size_t PlanImageBytes(absl::Span<const PassEvent> module_order, absl::Span<const size_t> image_bytes,
                      absl::Span<const size_t> gathered_bytes, const ShardingPolicy& policy) {
  return HighWater(PrivateImages(image_bytes, gathered_bytes), image_bytes.size(), module_order, policy);
}

}  // namespace weft
