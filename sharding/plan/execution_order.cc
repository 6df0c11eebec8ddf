#include "sharding/plan/execution_order.h"

#include <algorithm>
#include <utility>

#include "weft/core/hash.h"

namespace weft {

using Kind = PassEvent::Kind;

std::vector<PassEvent> ModuleOrder(absl::Span<const int> parents) {
  std::vector<PassEvent> order;
  std::vector<int> open;
  const auto close_to = [&](int parent) {
    while (!open.empty() && open.back() != parent) {
      order.push_back({open.back(), Kind::kEnd});
      open.pop_back();
    }
  };
  for (int group = 0; group < static_cast<int>(parents.size()); ++group) {
    close_to(parents[static_cast<size_t>(group)]);
    order.push_back({group, Kind::kBegin});
    open.push_back(group);
  }
  close_to(-1);
  return order;
}

std::vector<PassEvent> Reversed(absl::Span<const PassEvent> forward) {
  std::vector<PassEvent> backward;
  backward.reserve(forward.size());
  for (auto event = forward.rbegin(); event != forward.rend(); ++event) {
    backward.push_back({event->group, event->kind == Kind::kBegin ? Kind::kEnd : Kind::kBegin});
  }
  return backward;
}

uint64_t HashOf(absl::Span<const PassEvent> order) {
  std::vector<int> words;
  words.reserve(order.size());
  for (const PassEvent event : order) words.push_back(2 * event.group + static_cast<int>(event.kind));
  return Hash64(words.data(), words.size() * sizeof(int));
}

void ExecutionOrder::Begin() {
  visited_.clear();
  place_ = 0;
}

std::optional<PassEvent> ExecutionOrder::TakeMissed(PassEvent event) {
  if (!Expects(event) || Rest().front() == event) return std::nullopt;
  return expected_[place_++];
}

void ExecutionOrder::Visit(PassEvent event) {
  visited_.push_back(event);
  if (!Rest().empty() && Rest().front() == event) ++place_;
}

bool ExecutionOrder::Expects(PassEvent event) const {
  const absl::Span<const PassEvent> rest = Rest();
  return std::find(rest.begin(), rest.end(), event) != rest.end();
}

std::vector<int> ExecutionOrder::Beginning(absl::Span<const PassEvent> events, int depth) {
  std::vector<int> groups;
  for (const PassEvent event : events) {
    if (static_cast<int>(groups.size()) == depth) break;
    if (event.kind == Kind::kBegin) groups.push_back(event.group);
  }
  return groups;
}

void ExecutionOrder::Settle(std::vector<PassEvent> expected) {
  expected_ = std::move(expected);
  place_ = expected_.size();  // The present pass is over.
  settled_ = true;
}

namespace {

// Groups that backward holds unsharded at its start, without the root.
int HeldAtBackwardStart(int prefetch_depth) { return 1 + prefetch_depth; }

}  // namespace

bool StaysUnshardedForBackward(const ExecutionOrder& forward, const ExecutionOrder& backward, int group,
                               int prefetch_depth) {
  const int held = HeldAtBackwardStart(prefetch_depth);
  const bool is_among_last = static_cast<int>(forward.Next(held).size()) < held;
  const std::vector<int> first = backward.First(1 + held);  // The root comes first.
  return is_among_last && std::find(first.begin(), first.end(), group) != first.end();
}

std::vector<int> PrefetchAcrossBackwardStart(const ExecutionOrder& forward, const ExecutionOrder& backward,
                                             int prefetch_depth) {
  if (!forward.Next(1).empty()) return {};
  const int held = 1 + HeldAtBackwardStart(prefetch_depth);  // Including the root.
  std::vector<int> first = backward.First(held + prefetch_depth);
  first.erase(first.begin(), first.begin() + std::min<std::ptrdiff_t>(held, std::ssize(first)));
  return first;
}

}  // namespace weft
