#include "sharding/plan/execution_order.h"

#include <algorithm>
#include <set>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/ascii.h>
#include <absl/strings/string_view.h>

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

namespace {

// The name of the list that contains a group: its name without the number. Empty if it ends in none.
absl::string_view ListOf(absl::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == absl::string_view::npos || dot + 1 == name.size()) return {};
  const absl::string_view last = name.substr(dot + 1);
  return absl::c_all_of(last, absl::ascii_isdigit) ? name.substr(0, dot) : absl::string_view();
}

std::set<int> GroupsOf(absl::Span<const PassEvent> events) {
  std::set<int> groups;
  for (const PassEvent event : events) groups.insert(event.group);
  return groups;
}

}  // namespace

std::vector<int> UnvisitedBeside(absl::Span<const PassEvent> visited, absl::Span<const PassEvent> all,
                                 absl::Span<const std::string> names) {
  const std::set<int> known = GroupsOf(visited);
  std::set<absl::string_view> lists;
  for (const int group : known) lists.insert(ListOf(names[static_cast<size_t>(group)]));
  lists.erase(absl::string_view());
  std::vector<int> unvisited;
  int depth = 0;  // Of unvisited groups around the present event.
  for (const PassEvent event : all) {
    if (known.contains(event.group)) continue;
    const bool is_beside = depth > 0 || lists.contains(ListOf(names[static_cast<size_t>(event.group)]));
    if (!is_beside) continue;
    if (event.kind == Kind::kBegin) unvisited.push_back(event.group);
    depth += event.kind == Kind::kBegin ? 1 : -1;
  }
  return unvisited;
}

std::vector<PassEvent> WithGroups(std::vector<PassEvent> visited, absl::Span<const int> groups,
                                  absl::Span<const PassEvent> all) {
  std::set<int> known = GroupsOf(visited);
  PassEvent before = all.front();  // The last event of a known group.
  int outside = 0;                 // Groups around the present event that are not known.
  for (const PassEvent event : all) {
    const bool is_begin = event.kind == Kind::kBegin;
    if (is_begin && outside == 0 && !known.contains(event.group) &&
        absl::c_linear_search(groups, event.group)) {
      const auto place = std::find(visited.begin(), visited.end(), before);
      visited.insert(place == visited.end() ? place : place + 1, {event, {event.group, Kind::kEnd}});
      known.insert(event.group);
    }
    if (known.contains(event.group)) {
      before = event;
    } else {
      outside += is_begin ? 1 : -1;
    }
  }
  return visited;
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
