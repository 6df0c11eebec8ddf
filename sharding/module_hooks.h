// The schedule of a sharded model: what happens before and after the forward and backward of each group's
// module.
//
//   before forward    gather the group, wait, gather ahead
//   after forward     reshard, as the policy says
//   before backward   gather the group, wait, hand out gradient views, gather ahead
//   after backward    reduce gradients, reshard
//
// Any failure poisons the context: peers would otherwise wait for collectives that never come.
//
// Thread safety: none. Lifetime: the model and its modules must outlive the hooks.
#pragma once

#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "sharding/execution_order.h"
#include "weft/sharding/fully_shard.h"

namespace weft {

class ShardedModel::Hooks {
 public:
  explicit Hooks(ShardedModel& model);
  ~Hooks();
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  // Forgets the orders too, of which ranks may have recorded different passes.
  void ResetAfterError();
  // Gives back what the last backward kept unsharded.
  void ForgetKept();

 private:
  using Step = absl::Status (Hooks::*)(int group, Invocation& invocation);

  Module::Hook Guarded(Step step, int group);
  absl::Status BeforeForward(int group, Invocation& invocation);
  absl::Status AfterForward(int group, Invocation& invocation);
  absl::Status BeforeBackward(int group, Invocation& invocation);
  absl::Status AfterBackward(int group, Invocation& invocation);

  absl::Status Gather(int group);
  // Gathers ahead what `lists` have for the group that computes, or else what is `expected`.
  absl::Status Prefetch(int group, const PrefetchLists& lists, absl::Span<const int> expected);
  bool KeepsAfterForward(int group, const Invocation& invocation) const;
  absl::Status ReduceOnce(int group);
  // Finishes gathers that no module used after all, and reshards, but where the model keeps parameters.
  absl::Status SettleAll(bool reshard);
  absl::Status FinishForward();
  absl::Status FinishBackward();

  ShardedModel& model_;
  std::vector<std::pair<Module*, Module::HookId>> registered_;
  ExecutionOrder forward_, backward_;
  std::vector<int> last_forward_;   // Groups by the start of their forward in the last whole pass,
  std::vector<int> last_finished_;  // and by its end, whose reverse is the order of backward.
  std::vector<int> finished_;
  bool in_backward_ = false;   // Of the root: a forward inside it is a recompute.
  bool kept_ = false;          // Whether the last backward left groups unsharded.
  std::vector<bool> reduced_;  // By group: in this backward.
  // Forward calls of each group whose backward has not been yet: gradients are whole when there are none.
  absl::flat_hash_map<const Invocation*, std::vector<int>> open_calls_;
};

}  // namespace weft
