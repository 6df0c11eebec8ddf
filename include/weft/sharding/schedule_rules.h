// Rules of a schedule: the order and the priorities of gathers and reductions.
//
// The schedule of ShardedGroups decides when a group is needed, and waits for it. What it submits beside that
// comes from rules: which groups it gathers ahead, when it reduces the gradients of a group, and how urgent
// each operation is. Two decisions go by ShardingPolicy::prefetch_depth instead: which groups stay unsharded
// from forward into backward, and, if ranks of a node share images, which groups of backward are gathered at
// the end of forward. If shard groups span nodes, an update gathers the groups with which forward begins, as
// GathersAhead says. SetScheduleRules replaces the built-in rules, which are PrefetchRules. Rules change no
// bit of the results: see Note [Order of additions] in sharding/pipeline/reduction.h. A gradient that arrives
// after the last call of its group is an exception: it is part of the group's reduction if that has waited,
// and of another one if not. To compare rules on a simulated cluster, see ForecastStep in
// weft/train/planner.h and examples/own_schedule.cc.
//
// Thread safety: the schedule calls the rules on the thread that drives the groups.
// Collective: all ranks give rules that decide alike; they may depend on their arguments only. If ranks
// submit different operations, the engine finds the mismatch and names both.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/types/span.h>

#include "weft/comm/types.h"

namespace weft {

enum class PassPart : uint8_t { kForward, kBackward };

// Groups have the numbers of ShardedGroups: 0 is the root.
class ScheduleRules {
 public:
  virtual ~ScheduleRules() = default;

  // The groups to gather when `group` begins, in this order, after `group` itself. `next`: the groups that
  // begin after it in this part of the pass, nearest first. Groups that are gathered already are passed over.
  // Each takes the memory of its parameters until it is used.
  virtual std::vector<int> GathersAhead(PassPart part, int group, absl::Span<const int> next) const = 0;
  // Priority of such a gather. That of a group that is waited for is kCritical.
  virtual Priority GatherPriority(PassPart part, int group) const = 0;

  // The groups to reduce now that the backward of `group` has ended, in this order. `complete`: the groups
  // with complete gradients that are not reduced yet, oldest first; `group` is the last. Each that is left
  // keeps the memory of its full gradients. The end of the backward reduces the rest.
  virtual std::vector<int> Reductions(int group, absl::Span<const int> complete) const = 0;
  virtual Priority ReductionPriority(int group) const = 0;
};

// The built-in rules: the next groups are gathered ahead, and each group is reduced when its backward ends.
class PrefetchRules : public ScheduleRules {
 public:
  explicit PrefetchRules(int depth) : depth_(depth) {}

  std::vector<int> GathersAhead(PassPart part, int group, absl::Span<const int> next) const override;
  Priority GatherPriority(PassPart part, int group) const override;
  std::vector<int> Reductions(int group, absl::Span<const int> complete) const override;
  Priority ReductionPriority(int group) const override;

 private:
  int depth_;
};

}  // namespace weft
