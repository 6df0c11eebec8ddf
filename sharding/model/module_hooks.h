// The schedule of a sharded model: what happens before and after the forward and backward of each group's
// module.
//
//   before forward    gather the group, gather ahead, wait
//   after forward     reshard, as the policy says: but see below
//   before backward   gather the group, gather ahead, wait, hand out gradient views
//   after backward    reduce gradients, reshard: when the group's last call in this pass is over
//
// What is gathered ahead is submitted before anybody waits, so that the link between nodes always has
// something to go on with. It takes no more memory: what was used before has been given back. What forward
// begins with is gathered from when it is updated, while other groups are.
//
// Note [From forward to backward]
// Backward begins with the groups that forward ends with. Those that it would hold at once there, its first
// block and the prefetch_depth blocks that it gathers ahead, are not given back if they are also the last
// ones of forward: no gather, and no image more than backward holds anyway. Their gradients are not there
// yet.
//
// Between nodes that would leave the wire idle from the last gather of forward to the first reduction of
// backward. Where ranks share images on their nodes, an image is cheap, and the next prefetch_depth blocks of
// backward are gathered while the last group of forward computes.
//
// What a rank skips it makes up for: Note [One order on all ranks]. Any failure poisons the context: peers
// would otherwise wait for collectives that never come.
//
// Thread safety: none. Lifetime: the model and its modules must outlive the hooks.
#pragma once

#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "sharding/plan/execution_order.h"
#include "weft/sharding/fully_shard.h"

namespace weft {

class ShardedModel::Hooks {
 public:
  // `module_order`: of the model's groups.
  Hooks(ShardedModel& model, std::vector<PassEvent> module_order);
  ~Hooks();
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  // Ranks may have recorded different passes: orders are forgotten too.
  void ResetAfterError();
  void ForgetOrders();
  // Gives back what the last backward kept unsharded.
  void ForgetKept();
  // Sends on what was updated of the group's shards, and gathers it if forward begins with it.
  absl::Status AfterUpdate(int group);
  // Finishes gathers that no module used after all, and reshards where told.
  absl::Status SettleGathers(bool reshard);

 private:
  using Step = absl::Status (Hooks::*)(int group, Invocation& invocation);
  struct Group {
    int running = 0;        // Calls of its module, of forward or backward, that have not returned.
    bool begun = false;     // Its part of backward, by a recompute or by its backward itself.
    bool reduced = false;   // In this backward.
    int owed_backward = 0;  // Forward calls in the backward's invocation whose backward is still to come.
  };

  Module::Hook Guarded(Step step, const char* place, int group);
  absl::Status BeforeForward(int group, Invocation& invocation);
  absl::Status AfterForward(int group, Invocation& invocation);
  absl::Status BeforeBackward(int group, Invocation& invocation);
  absl::Status AfterBackward(int group, Invocation& invocation);

  absl::Status BeginForward(const Invocation& invocation);
  absl::Status BeginBackward(const Invocation& invocation);
  absl::Status FinishForward(const Invocation& invocation);
  absl::Status FinishBackward(const Invocation& invocation);

  // An event of a module; makes up for those that this rank has skipped before it.
  absl::Status Come(PassEvent event);
  absl::Status Do(PassEvent event);
  absl::Status EndForwardOf(int group);
  bool ReshardsAfterForward(int group) const;
  bool StaysOverTheTurn(int group) const;
  absl::Status EndBackwardOf(int group);
  absl::Status SettleOrder();

  // Of the part of the pass that is under way.
  bool NeedsParameters(int group) const;
  absl::Status Unshard(int group, Priority priority);
  absl::Status Wait(int group);
  // Whether the next forward gathers the group at its very beginning.
  bool BeginsForward(int group) const;
  // What was chosen to be gathered ahead where `group` begins, or else `otherwise`.
  static std::vector<int> Ahead(const PrefetchLists& chosen, int group, std::vector<int> otherwise);
  absl::Status Prefetch(int group);
  absl::Status PrefetchOverTheTurn();
  absl::Status Reshard(int group, absl::Status (ParamGroup::*how)() = &ParamGroup::Reshard);
  absl::Status Reduce(int group);
  absl::Status ReduceUnvisited(int group);

  Group& At(int group) { return groups_[static_cast<size_t>(group)]; }
  ParamGroup& Params(int group) { return *model_.groups_[static_cast<size_t>(group)]; }
  void Notify(ScheduleEvent event, int group);

  ShardedModel& model_;
  std::vector<std::pair<Module*, Module::HookId>> registered_;
  const std::vector<PassEvent> module_order_;
  const bool spans_nodes_;  // Some shard group does, so that a gather takes its time on the wire.
  ExecutionOrder training_, evaluation_, backward_;
  ExecutionOrder* pass_ = &training_;  // The one of these that is under way.
  bool in_backward_ = false;           // Of the root: a forward inside it is a recompute.
  bool backward_follows_ = false;      // The forward under way.
  bool kept_ = false;                  // Whether the last backward left groups unsharded.
  std::vector<Group> groups_;
  // Forward calls of each group, by invocation.
  absl::flat_hash_map<const Invocation*, std::vector<int>> calls_;
};

}  // namespace weft
