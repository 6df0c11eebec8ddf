// Parameter groups sharded over a mesh, without modules: memory, schedule, gradients and updates.
//
// A client describes the groups and calls the schedule from hooks of its own. ShardedModel is the client for
// trees of modules; read weft/sharding/fully_shard.h first, which explains meshes, setters and when shards
// may be written. Groups have numbers: 0 is the root, which contains all others. Each use of a group in a
// pass is
//
//   BeforeForward   gathers the group: its parameters' `data` view it
//   AfterForward    reshards it
//   BeforeBackward  gathers it again, and hands out `grad` views
//   AfterBackward   reduces and reshards it
//
//   groups->BeforeForward(0, pass);  ... blocks ...  groups->AfterForward(0, pass);
//   groups->BeforeBackward(0, pass); ... blocks ...  groups->AfterBackward(0); groups->FinishBackward();
//   groups->UpdateShards(optimizer);
//   groups->ZeroGradients();
//
// A client writes a gradient to Parameter::grad and tells so by Parameter::BeginGradWrite. `data` and `grad`
// are null outside of the time in which they may be used. An address may differ from one use to the next;
// where ranks share an image in place it never does.
//
// Several ShardedGroups may use one engine, in one order on all ranks.
//
// Errors: an error of a schedule call fails the groups on all ranks, until ResetAfterError.
// Thread safety: none; one thread drives the groups.
// Collective: Create, schedule calls, Unshard, ReduceGradients, ClipGradNorms, AllReduceScalars,
//   CurrentShards, UpdateShards, FinishUpdatesInBackward, BeginWriting, PrepareWrites, ResetAfterError and
//   CompareUpdates, by all ranks of the mesh in one order: Note [The order of blocks].
// Lifetime: the engine must outlive the groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/comm_engine.h"
#include "weft/mesh/device_mesh.h"
#include "weft/nn/parameter.h"
#include "weft/sharding/counters.h"
#include "weft/sharding/custom_collectives.h"
#include "weft/sharding/flat_layout.h"
#include "weft/sharding/gradient_norm.h"
#include "weft/sharding/group_members.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"
#include "weft/sharding/schedule_event.h"
#include "weft/sharding/schedule_rules.h"
#include "weft/sharding/shard_view.h"

namespace weft {

class BackwardUpdates;
class CommContext;
class GroupSchedule;
class ModelScalars;
class ParamGroup;
struct GroupSpec;
struct PassEvent;
class SharedBlock;

// One forward and the backwards that follow it. An id is unique among the passes that are not abandoned.
struct SchedulePass {
  uintptr_t id;
  bool gradients;  // True if a backward may follow.
};

class ShardedGroups {
 public:
  // Loads every shard through `loader`, and takes the parameters' data away. All ranks agree on the outcome;
  // after an error the parameters keep their data. REQUIRES: `groups` has the root's group first and each
  // group after its parent, depth first; no parameter is in two groups.
  // Errors: those of FullyShard, except for its checks of blocks and of parameters in two groups.
  static absl::StatusOr<std::unique_ptr<ShardedGroups>> Create(CommEngine& engine, const DeviceMesh& mesh,
                                                               std::vector<GroupMembers> groups,
                                                               const ShardingPolicy& policy,
                                                               const ShardLoader& loader);
  ~ShardedGroups();

  // Schedule. The root's BeforeForward begins a pass, its BeforeBackward a backward of that pass. A forward
  // inside a backward recomputes activations. A group may be used several times in a pass.
  // Errors: kFailedPrecondition (another group outside of a pass of the root; a backward of a pass that is
  // unknown or whose shards were written since its forward; updates in a backward that is not the last one).
  absl::Status BeforeForward(int group, const SchedulePass& pass);
  absl::Status AfterForward(int group, const SchedulePass& pass);
  absl::Status BeforeBackward(int group, const SchedulePass& pass);
  absl::Status AfterBackward(int group);
  // Due after the root's AfterBackward. Reduces the groups that took no part, and waits for all reductions if
  // the backward is the last one.
  absl::Status FinishBackward();
  // Hands out the `grad` views of a group whose backward has not begun, for a gradient that comes early.
  absl::Status PrepareGradients(int group);
  // Forgets the pass of that id: no backward of it follows any more. Nothing happens if it is unknown.
  void Abandon(uintptr_t pass_id);
  // True while a backward is under way.
  bool is_in_backward() const;
  // Fails the groups on all ranks, for a failure between schedule calls. Peers get `cause` with this rank's
  // number instead of waiting. Nothing happens after an earlier failure.
  void Stop(const absl::Status& cause);
  // Stop, for callers that return the failure: adds `place` to it.
  absl::Status Fail(const absl::Status& cause, const std::string& place);

  // A group outside of its uses: starts to gather, waits until `data` can be read, gives the image back.
  // Collective: Unshard, also of an unsharded group, and Reshard if ranks of a node share images.
  // Errors: kFailedPrecondition (WaitUnshard without Unshard; Reshard before WaitUnshard). Any other error
  // fails the groups on all ranks.
  absl::Status Unshard(int group);
  absl::Status WaitUnshard(int group);
  absl::Status Reshard(int group);
  // True if the group's parameters can be read.
  bool is_unsharded(int group) const;
  // True if WaitUnshard is due.
  bool is_being_unsharded(int group) const;

  // Setters. They take effect with the next forward or backward, and must be called alike on all ranks.
  // ShardedModel explains each. Those of a group may differ from group to group.
  void SetRequiresGradientSync(int group, bool sync);
  void SetRequiresAllReduce(int group, bool all_reduce);
  void SetReshardAfterForward(int group, bool reshard);
  void SetReshardAfterBackward(int group, bool reshard);
  void SetUnshardInBackward(int group, bool unshard);
  void SetForwardPrefetch(int group, std::vector<int> next);
  void SetBackwardPrefetch(int group, std::vector<int> next);
  void SetGradientDivideFactor(int group, double factor);
  void SetCustomAllGather(int group, CustomAllGather all_gather);
  void SetCustomReduceScatter(int group, CustomReduceScatter reduce_scatter);
  void SetGradientHook(int group, GradientHook hook);
  void SetIsLastBackward(bool last);
  void SetScheduleObserver(ScheduleObserver observer);
  // Null: the built-in rules. The lists of SetForwardPrefetch and SetBackwardPrefetch come before the rules.
  void SetScheduleRules(std::shared_ptr<const ScheduleRules> rules);
  void RecordOrderAgain();
  // Called about every 50 ms while a call waits for the engine, on its thread. An error ends the wait and
  // fails the groups, so a program can react to signals. A custom collective is waited for without checks.
  // Null: no check.
  void SetWaitCheck(std::function<absl::Status()> check);

  // See the functions of the same names of ShardedModel.
  absl::Status ReduceGradients();
  absl::Status CheckGradientsReduced() const;
  // Groups with f64 masters (ParameterDTypes) have no ShardViews: Shards REQUIRES fp32 masters, of the group
  // or of all, and for CurrentShards and UpdateShards they are an error. Masters lists the shards of any.
  std::vector<ShardView> Shards() const;
  std::vector<ShardView> Shards(int group) const;
  std::vector<MasterView> Masters(int group) const;
  absl::StatusOr<std::vector<ShardView>> CurrentShards();
  absl::Status UpdateShards(const ShardUpdate& update);
  absl::Status BeginUpdatesInBackward(ShardUpdate update, std::vector<ClipSet> sets);
  absl::StatusOr<std::vector<GradientNorm>> FinishUpdatesInBackward();
  absl::Status BeginWriting();
  // True if shards were read since they could be written last: BeginWriting is due before they are written.
  // The same on all ranks.
  bool are_shards_read() const;
  // BeginWriting if it is due, otherwise only its local part: no pass that had its forward gets a backward,
  // groups that the last backward kept unsharded are resharded, and casts that an update wrote are forgotten.
  // After an error of a peer, the local part does nothing, and is no error: no pass has a backward then.
  absl::Status PrepareWrites();
  void ZeroGradients();
  // Forgets the reduced gradients of the parameters that `selects` selects: they have none until the next
  // reduction. Keeps those that are still to be reduced. Those of other parameters of their groups move to
  // other memory: see ReducedSums. REQUIRES: all ranks select the same parameters.
  // Errors: kFailedPrecondition (reductions of one of these groups are under way: mark the last backward
  // first. Nothing is forgotten), kResourceExhausted.
  absl::Status ForgetReducedGradients(const std::function<bool(const Parameter&)>& selects);
  // By parameter of a group: whether it has a reduced gradient, on this rank or another.
  std::vector<bool> ReducedParameters(int group) const;
  // As Masters, but with the sums of earlier reductions also while gradients are left that are not reduced.
  std::vector<MasterView> ReducedSums(int group) const;
  // Owner of the memory of a group's reduced gradients, for holders that may outlive ZeroGradients or
  // ForgetReducedGradients. Null if there are none. REQUIRES: the groups outlive the owner.
  std::shared_ptr<const void> ReducedGradients(int group) const;
  // `external` may differ between shard ranks. REQUIRES: empty, or replicas do not share the optimizer.
  absl::StatusOr<std::vector<GradientNorm>> ClipGradNorms(absl::Span<const ClipSet> sets, NormType type,
                                                          const ExternalGradients& external = {});
  absl::Status AllReduceScalars(const std::string& label, void* values, DType dtype, int64_t count,
                                ReduceOp op);
  // See ShardedModel. Compares no updates: see CompareUpdates.
  absl::Status ResetAfterError();
  // Compares the updates by UpdateShards and in backward. A client whose ranks may have failed between them
  // calls it after ResetAfterError. One that updates through Masters, Shards or CurrentShards compares its
  // ranks itself.
  // Errors: kDataLoss (the last update of any rank is missing or incomplete on some; names these), once: the
  // program then loads shards, which are of one step again; kDeadlineExceeded (names the missing ranks).
  // Collective: all ranks.
  absl::Status CompareUpdates();
  // The failure of the groups; OK before one, and after ResetAfterError.
  const absl::Status& status() const;

  int group_count() const { return static_cast<int>(groups_.size()); }
  const std::string& name(int group) const;
  const ParameterDTypes& dtypes(int group) const;
  const FlatLayout& layout(int group) const;
  // See ShardedModel.
  bool IsFirstReplica(const Parameter& parameter) const;
  // The policy with its prefetch depth resolved.
  const ShardingPolicy& policy() const { return policy_; }
  const ResidencyChoice& residency() const { return residency_; }
  ShardingCounters counters() const;
  MemoryPeaks peaks() const;
  void ResetPeaks();

 private:
  friend struct ShardedGroupsParts;  // For the library and its tests.

  ShardedGroups(ShardingPolicy policy, ResidencyChoice residency, std::unique_ptr<CommContext> context);
  absl::Status CreateGroups(std::vector<GroupSpec> specs, std::vector<SharedBlock> images,
                            const ShardLoader& loader);
  ParamGroup& group(int number) const { return *groups_[static_cast<size_t>(number)]; }
  // Passes an error to Fail, with the place "`what` of '<name of the group>'".
  absl::Status FailOnError(const absl::Status& status, std::string_view what, int group);
  // Errors: kFailedPrecondition (updates in a backward that is not the last one).
  absl::Status CheckUpdatesAreInLastBackward() const;
  absl::Status CreateSchedule(const DeviceMesh& mesh, std::vector<PassEvent> module_order);
  // Errors: kFailedPrecondition (a group has f64 masters).
  absl::Status CheckMastersAreF32() const;

  const ShardingPolicy policy_;
  const ResidencyChoice residency_;
  std::unique_ptr<CommContext> context_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  std::unique_ptr<ModelScalars> scalars_;
  std::unique_ptr<GroupSchedule> schedule_;
  std::shared_ptr<BackwardUpdates> backward_updates_;  // Null outside of such a step.
  int64_t updates_ = 0;       // Updates of all groups, by UpdateShards or in backward.
  bool is_updating_ = false;  // True if a further one has begun.
};

}  // namespace weft
