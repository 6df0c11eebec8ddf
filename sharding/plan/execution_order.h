// Order in which a pass goes through the groups of a model, and the events that this rank has still to run.
//
// Note [One order on all ranks]
// Problem: all ranks must submit the collectives of a lane in one order. A rank may skip a module in a pass,
// for example an expert that got no tokens, and its peers cannot know that without a collective of its own.
// Rule: every pass follows an *expected* order that is the same on all ranks. A rank that reaches a later
// place of it first runs the events that it skipped, as if their modules had been called without effect. A
// call outside of the expected order, such as a second call of a module, is an extra, which all ranks must
// make alike.
// Why it suffices: ranks submit the expected collectives in one order whatever they skip. If they disagree on
// an extra, the engine finds the mismatch and names both operations.
//
// The first expected order is that of the modules. The first pass is recorded. At its end the ranks compare
// their records, once (ModelScalars::IsSameOnAllRanks). If they are equal, the record becomes the expected
// order, with the groups that a later pass may use (UnvisitedBeside); otherwise the modules' order, which
// contains every group, stays. The backward order has the same groups added, and no others: a backward that
// ends above frozen groups gathers none of them. So later passes need no collective to agree.
//
// Pure.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <absl/types/span.h>

namespace weft {

// Number of the root group, which contains all others.
constexpr int kRootGroup = 0;

// Begin or end of a group: of its forward, or of its backward including the recompute before it.
struct PassEvent {
  enum class Kind : uint8_t { kBegin, kEnd };
  int group;
  Kind kind;

  friend bool operator==(const PassEvent&, const PassEvent&) = default;
};

// Every group once, nested like the modules. `parents[i] < i` is the group around group i; -1 for the first.
std::vector<PassEvent> ModuleOrder(absl::Span<const int> parents);
// The backward order of a forward: the same events in reverse, with begin and end exchanged.
std::vector<PassEvent> Reversed(absl::Span<const PassEvent> forward);

// The groups that a pass has not visited, but that a later one may use: those beside a visited one, such as
// the other experts of a layer, and all inside of these. Groups are beside each other if their names are
// equal but for the last part, and this is a number, as in "experts.3". A part of a model that the pass has
// left out whole is not among them, so that it costs no gathers. `all`: ModuleOrder; `names`: by group.
std::vector<int> UnvisitedBeside(absl::Span<const PassEvent> visited, absl::Span<const PassEvent> all,
                                 absl::Span<const std::string> names);
// Adds `groups` to a pass that has not visited them, each behind the group that it follows in `all`, which
// has every group once. Leaves out those whose parents the pass has not.
std::vector<PassEvent> WithGroups(std::vector<PassEvent> visited, absl::Span<const int> groups,
                                  absl::Span<const PassEvent> all);

uint64_t HashOf(absl::Span<const PassEvent> order);

class ExecutionOrder {
 public:
  explicit ExecutionOrder(std::vector<PassEvent> expected) : expected_(std::move(expected)) {}

  // Starts a pass.
  void Begin();
  // Returns the next event that was skipped before `event` and counts it as run. Null if `event` is the next
  // expected one, or is not expected any more.
  std::optional<PassEvent> TakeMissed(PassEvent event);
  // Records that `event` runs.
  void Visit(PassEvent event);

  // True if `event` is expected later in this pass.
  bool Expects(PassEvent event) const;
  // The groups that begin next in this pass, at most `depth`.
  std::vector<int> Next(int depth) const { return Beginning(Rest(), depth); }
  // The groups that begin first in a pass, at most `depth`.
  std::vector<int> First(int depth) const { return Beginning(expected_, depth); }

  const std::vector<PassEvent>& expected() const { return expected_; }
  // The events that ran in this pass, without those that were skipped.
  const std::vector<PassEvent>& visited() const { return visited_; }

  // Fixes the expected order of all later passes.
  void Settle(std::vector<PassEvent> expected);
  bool settled() const { return settled_; }

 private:
  static std::vector<int> Beginning(absl::Span<const PassEvent> events, int depth);
  absl::Span<const PassEvent> Rest() const { return absl::MakeConstSpan(expected_).subspan(place_); }

  std::vector<PassEvent> expected_;
  std::vector<PassEvent> visited_;
  size_t place_ = 0;
  bool settled_ = false;
};

// True if `group`, whose forward ends, is one of the last groups of forward and one of the first that
// backward holds unsharded. See Note [From forward to backward] in sharding/model/group_schedule.h.
bool StaysUnshardedForBackward(const ExecutionOrder& forward, const ExecutionOrder& backward, int group,
                               int prefetch_depth);
// The groups to gather while the last group of forward computes: the first `prefetch_depth` groups of
// backward that do not stay unsharded anyway. Empty before the last group.
std::vector<int> PrefetchAcrossBackwardStart(const ExecutionOrder& forward, const ExecutionOrder& backward,
                                             int prefetch_depth);

}  // namespace weft
