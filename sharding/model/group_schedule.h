// Schedule of parameter groups: when each is gathered, resharded and reduced.
//
//   BeforeForward    gather the group, prefetch, wait
//   AfterForward     reshard, as the policy says (Note [From forward to backward])
//   BeforeBackward   gather the group, prefetch, wait, hand out gradient views
//   AfterBackward    reduce gradients and reshard, after the group's last call in this pass
//
// A schedule knows groups by number (0 is the root, which contains all others), passes by id, and whether a
// pass records gradients. It knows no modules: a client calls it from its own hooks.
//
// BeforeForward and BeforeBackward submit a group's prefetches before they wait for the group, so that the
// link between nodes stays busy. That takes no more memory, because earlier images have been freed.
//
// Note [From forward to backward]
// Problem: backward begins with the groups that forward ends with, and would gather them again.
// Rule: the groups that backward holds at its start, its first block and the `prefetch_depth` blocks that it
// prefetches, stay unsharded if they are also the last ones of forward.
// Why it suffices: this saves their gathers and holds no image that backward would not hold anyway; no
// gradient image exists yet. Between nodes the wire would still be idle from the last gather of forward to
// the first reduction of backward. If ranks of a node share images, an image is cheap, so the next
// `prefetch_depth` blocks of backward are gathered while the last group of forward computes.
//
// Note [Groups of several modules]
// Problem: each module of a group calls the schedule, but the group shall be gathered and reduced once.
// Rule: a use of the group begins before its first module, and ends after the last call: in forward when as
// many calls as the group has modules have ended, in backward when no call is left. A rank that skips a
// module cannot count to the end. There the expected order ends the use, or else the root's end does.
// Why it suffices: events begin and end uses, not calls, so ranks that skip different modules still run the
// same events in the same order.
//
// Note [Late gradients]
// Problem: the gradient of a parameter that is also used outside of its group may come after the group was
// reduced, and on some ranks only. A rank cannot reduce it alone.
// Rule: it stays until the last backward of a step, unless a reduction of the group takes it along before.
// There all ranks exchange a flag for each group, in the agreement on used parameters, and reduce the groups
// for which any of them has such a gradient. Without that agreement (UnusedGradients::kZero) it is an error.
// Why it suffices: apart from that exchange, switches and orders alone decide about reductions, and they are
// the same on all ranks.
//
// A rank that skips a block still takes part in its collectives: Note [One order on all ranks]. The client
// must fail the context if a call fails, because peers would otherwise wait for collectives that are never
// submitted.
//
// Thread safety: none. Collective: all calls, by all ranks, in the order of Note [One order on all ranks].
// Lifetime: context, scalars and groups must outlive the schedule.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <absl/types/span.h>

#include "sharding/group/param_group.h"
#include "sharding/model/model_scalars.h"
#include "sharding/plan/execution_order.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"
#include "weft/sharding/schedule_event.h"
#include "weft/sharding/schedule_rules.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {

// Switches of one group. A change takes effect with the next forward or backward, and must be the same on
// all ranks. See the setters of ShardedModel.
struct GroupSwitches {
  bool gradient_sync = true;
  bool all_reduce = true;
  bool reshard_after_forward = true;
  bool reshard_after_backward = true;
  bool unshard_in_backward = true;
};

class GroupSchedule {
 public:
  using Groups = absl::Span<const std::unique_ptr<ParamGroup>>;

  // `module_order`: ModuleOrder of the groups.
  GroupSchedule(CommContext& context, ModelScalars& scalars, Groups groups,
                std::vector<PassEvent> module_order, const ShardingPolicy& policy, Residency residency);

  // The root's BeforeForward begins a pass. A forward inside a backward, also of the root, recomputes
  // activations. Errors: kFailedPrecondition (another group outside of a pass of the root).
  absl::Status BeforeForward(int group, const SchedulePass& pass);
  absl::Status AfterForward(int group, const SchedulePass& pass);
  // In a backward, the root's BeforeBackward only checks a further pass, whose backward is part of this one.
  // Errors: kFailedPrecondition (a backward of the root without a forward of the same pass; a pass whose
  // shards were written since its forward; another group outside of a backward of the root).
  absl::Status BeforeBackward(int group, const SchedulePass& pass);
  absl::Status AfterBackward(int group);
  // Due after the root's AfterBackward. Waits for the reductions if the backward is the last one.
  absl::Status FinishBackward();
  // Outside of passes: reduces the gradients that backwards have kept, waits for all reductions, and reshards
  // every group: shards may be written afterwards.
  // Errors: kFailedPrecondition (inside of a pass).
  absl::Status ReduceGradients();
  // Forgets the pass of that id: no backward of it follows any more.
  void Abandon(uintptr_t pass_id);
  bool is_in_backward() const { return in_backward_; }

  // Shares a group's update with other ranks, and gathers the group if the next forward begins with it.
  absl::Status AfterUpdate(int group);
  // Due before shards are written outside of passes. Calls ReshardKept, and forgets the casts that an update
  // of this epoch has written. The passes whose backward has not run cannot run it any more: it would combine
  // activations of the old weights with the new ones.
  absl::Status BeginWriting();
  // Reshards every group and waits until no peer reads this rank's shards.
  absl::Status FinishReading();
  // Reshards the groups of which the last backward kept the image or a part of it, and no others.
  void ReshardKept();
  // Due when a caller reshards a group: what it unshards later is its own.
  void ReleaseKept(int group) { kept_[static_cast<size_t>(group)] = false; }

  GroupSwitches& switches(int group) { return switches_[static_cast<size_t>(group)]; }
  const GroupSwitches& switches(int group) const { return switches_[static_cast<size_t>(group)]; }
  void SetIsLastBackward(bool last) { is_last_backward_ = last; }
  bool is_last_backward() const { return is_last_backward_; }
  // The groups to gather when `group` begins its forward (backward), in this order, instead of the next ones
  // in the recorded order.
  void SetForwardPrefetch(int group, std::vector<int> next);
  void SetBackwardPrefetch(int group, std::vector<int> next);
  // Null: PrefetchRules. The lists above come before the rules.
  void SetRules(std::shared_ptr<const ScheduleRules> rules);
  // Null: no observer.
  void SetObserver(ScheduleObserver observer) { observer_ = std::move(observer); }

  // Forgets the recorded orders: the next pass is recorded again.
  void ForgetOrders();
  // After CommContext::ResetAfterError. Ranks may have recorded different passes, so orders are forgotten
  // too.
  void ResetAfterError();

 private:
  using PrefetchLists = absl::flat_hash_map<int, std::vector<int>>;  // By group.
  struct GroupProgress {
    int running = 0;           // Calls of forward or backward that have not returned.
    bool in_use = false;       // In backward, a recompute begins the use.
    int calls = 0;             // Forward calls: in forward those of this use, in backward those of the pass.
    bool is_reduced = false;   // True if its reduction was submitted in this backward.
    int pending_backward = 0;  // Forward calls of this pass whose backward has not run.
  };

  absl::Status OutsideOfPass(int group, std::string_view part) const;
  absl::Status BeginForward(const SchedulePass& pass);
  absl::Status BeginBackward(const SchedulePass& pass);
  absl::Status FinishForward(const SchedulePass& pass);
  // ReleaseKept of every group.
  void ForgetKept() { kept_.assign(kept_.size(), false); }

  // Runs an event of a group, after the events that this rank has skipped before it.
  absl::Status OnEvent(PassEvent event);
  absl::Status RunEvent(PassEvent event);
  // Begins a use of a group unless one is under way; ends it if no call is left.
  absl::Status BeginUse(int group);
  absl::Status EndUse(int group);
  void SetInUse(int group, bool in_use);
  // True if the last call of a use has ended. See Note [Groups of several modules].
  bool IsLastCall(int group) const;
  // Ends the uses whose last module this rank skipped. Due at the root's end.
  absl::Status EndOpenUses();
  absl::Status EndForwardOf(int group);
  absl::Status EndBackwardOf(int group);
  // Agrees with all ranks on the recorded order, once.
  absl::Status AgreeOnOrder();

  bool ReshardsAfterForward(int group) const;
  bool StaysUnsharded(int group) const;
  // True if the group's parameters are used in the present part of the pass.
  bool NeedsParameters(int group) const;
  // True if the next forward gathers the group at its start.
  bool BeginsForward(int group) const;
  // The groups to gather ahead when `group` begins, before those of `next`.
  std::vector<int> PrefetchesOf(PassPart part, int group, const std::vector<int>& next) const;
  PassPart part() const { return in_backward_ ? PassPart::kBackward : PassPart::kForward; }

  absl::Status Unshard(int group, Priority priority);
  absl::Status Wait(int group);
  absl::Status Prefetch(int group);
  absl::Status PrefetchForBackward();
  absl::Status Reshard(int group, absl::Status (ParamGroup::*how)() = &ParamGroup::Reshard);
  // Reduces as the group's switches say.
  absl::Status Reduce(int group);
  absl::Status Reduce(int group, ReduceScope scope);
  // Reduces the groups that the rules choose now that the backward of `group` has ended.
  absl::Status ReduceByRules(int group);
  absl::Status ReduceUnvisited(int group);
  // Agrees with all ranks on the parameters that any of them has used: Note [Unused parameters]. Reduces the
  // gradients of Note [Late gradients].
  absl::Status AgreeOnUsedParameters();
  // True if the group has a gradient that its reduction has missed: Note [Late gradients].
  bool HasLateGradient(int group) const;
  // Errors: kFailedPrecondition (a late gradient; names the parameter).
  absl::Status CheckNoneIsLate() const;
  // Waits for prefetches that were not used.
  absl::Status FinishPrefetches();
  // The same, and reshards every group.
  absl::Status ReshardAll();
  void Notify(ScheduleEvent event, int group);

  int group_count() const { return static_cast<int>(groups_.size()); }
  ParamGroup& GroupAt(int group) const { return *groups_[static_cast<size_t>(group)]; }
  GroupProgress& ProgressOf(int group) { return progress_[static_cast<size_t>(group)]; }
  const GroupProgress& ProgressOf(int group) const { return progress_[static_cast<size_t>(group)]; }

  CommContext& context_;
  ModelScalars& scalars_;
  const Groups groups_;
  const std::vector<PassEvent> module_order_;
  const int prefetch_depth_;
  const bool skips_unused_;  // True if unused parameters have no gradient.
  const bool shares_images_on_nodes_;
  const std::vector<bool> spans_nodes_;  // By group: true if its gathers use the wire, on any rank.
  std::vector<GroupSwitches> switches_;  // By group.
  bool is_last_backward_ = true;
  PrefetchLists forward_prefetch_, backward_prefetch_;
  const std::shared_ptr<const ScheduleRules> built_in_rules_;
  std::shared_ptr<const ScheduleRules> rules_;
  std::vector<int> complete_;  // Groups with complete gradients that are not reduced yet, oldest first.
  ScheduleObserver observer_;

  ExecutionOrder training_, evaluation_, backward_;
  std::vector<int> beside_training_;   // Groups that UnvisitedBeside added to training_, and so to backward_.
  ExecutionOrder* pass_ = &training_;  // Order of the forward or backward under way.
  bool in_backward_ = false;           // True if the root's backward is under way.
  bool backward_follows_ = false;      // True if a backward follows the forward under way.
  std::vector<bool> kept_;             // By group: true if the last backward left its image, or a part of it.
  std::vector<GroupProgress> progress_;
  // True if the last forward was one with gradients and no backward has begun since.
  bool awaits_backward_ = false;
  // Forward calls of each group, by pass id.
  absl::flat_hash_map<uintptr_t, std::vector<int>> calls_;
  // Passes whose forward read shards that were written since.
  absl::flat_hash_set<uintptr_t> outdated_;
};

}  // namespace weft
