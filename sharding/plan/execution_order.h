// The order in which a pass goes through the groups of a model, and what this rank still owes to it.
//
// Note [One order on all ranks]
// Collectives of a lane must be submitted in one order on all ranks, but a rank may skip a module in a pass
// (an expert that got no tokens), and nobody can ask the others without a collective of its own. So every
// pass follows an *expected* order that all ranks hold alike: whoever comes to a later place of it first
// makes up for what he skipped on the way, as if its modules had been called and had done nothing. What is
// called beside the expected order (a module for the second time, say) is an extra, which all ranks must call
// alike; if they do not, the engine finds the mismatch and names both.
//
// At first the expected order is the modules' own. The first pass is recorded, and at its end the ranks
// compare what they recorded, once (ModelScalars::Same): if it is the same, it becomes the expected order; if
// not, the modules' order stays, which has every group in it. So ranks agree without a collective per pass.
//
// Pure. Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <absl/types/span.h>

namespace weft {

// The module of a group begins or ends: its forward, or its backward with the recompute before it.
struct PassEvent {
  enum class Kind : uint8_t { kBegin, kEnd };
  int group;
  Kind kind;

  friend bool operator==(const PassEvent&, const PassEvent&) = default;
};

// Each group once, nested as the modules are: `parents[i] < i` is the group around group i, -1 of the first.
std::vector<PassEvent> ModuleOrder(absl::Span<const int> parents);
// The backward of a forward: from its end to its beginning.
std::vector<PassEvent> Reversed(absl::Span<const PassEvent> forward);

uint64_t HashOf(absl::Span<const PassEvent> order);

class ExecutionOrder {
 public:
  explicit ExecutionOrder(std::vector<PassEvent> expected) : expected_(std::move(expected)) {}

  // Starts a pass.
  void Begin();
  // The next event to make up for before `event`, which counts as done; none where `event` is the next one,
  // or is not expected any more.
  std::optional<PassEvent> TakeMissed(PassEvent event);
  // Notes `event` as done.
  void Visit(PassEvent event);

  // Whether `event` is still to come.
  bool Expects(PassEvent event) const;
  // The groups that begin next, at most `depth`.
  std::vector<int> Next(int depth) const { return Beginning(Rest(), depth); }
  // Those that begin first in a pass.
  std::vector<int> First(int depth) const { return Beginning(expected_, depth); }

  const std::vector<PassEvent>& expected() const { return expected_; }
  // What was done in this pass, without what was made up for.
  const std::vector<PassEvent>& visited() const { return visited_; }

  // What passes expect from now on, for good.
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

// Whether `group`, which ends in a forward under way, is one of the last there and one of the first that the
// backward behind it holds, with so many gathered ahead. See Note [From forward to backward].
bool StaysUnshardedForBackward(const ExecutionOrder& forward, const ExecutionOrder& backward, int group,
                               int prefetch_depth);
// What is gathered while the last group of a forward under way computes: the first groups of the backward
// behind it that are not held at the turn, `prefetch_depth` of them. Before that none.
std::vector<int> PrefetchAcrossBackwardStart(const ExecutionOrder& forward, const ExecutionOrder& backward,
                                             int prefetch_depth);

}  // namespace weft
